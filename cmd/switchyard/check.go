package main

import (
	"errors"
	"fmt"
	"path/filepath"

	"github.com/spf13/cobra"

	"github.com/switchyard-dev/switchyard/shard/engine/wal"
)

func newCheckCommand(a *app) *cobra.Command {
	var repair, yes bool
	c := &cobra.Command{
		Use:   "check FOLDER",
		Short: "Check the log in a data folder",
		Long: `Check the write-ahead log in the data folder of a server. Every frame is read and
its checksum compared; nothing is changed. An unfinished write at the very end,
as a power cut leaves it, is fine: the server cuts it off when it starts. Damage
anywhere else is an error (exit code 1), and the server refuses to start on it.

--repair cuts the log off where the damage begins. What was acknowledged after
that is LOST from the log; it is kept in files that end in .bad. Restore a backup
instead if there is one. Stop the server before.`,
		Example: `  switchyard check ./switchyard-data
  switchyard check ./switchyard-data --repair`,
		Args: exactArgs("FOLDER"),
		RunE: func(_ *cobra.Command, args []string) error {
			dir, err := findLog(args[0])
			if err != nil {
				return err
			}
			report, err := wal.Check(dir, nil)
			if err != nil {
				return err
			}
			if repair && !report.OK {
				return a.repairLog(dir, report, yes)
			}
			if err := a.printCheck(report); err != nil {
				return err
			}
			if !report.OK {
				return &exitError{code: exitFailed, err: errors.New("the log is damaged; docs/operations.md says what to do")}
			}
			return nil
		},
	}
	c.Flags().BoolVar(&repair, "repair", false, "cut a damaged log off at the damage; what comes after is lost")
	c.Flags().BoolVarP(&yes, "yes", "y", false, "do not ask")
	return c
}

// findLog returns the folder of the log: dir itself, or one below it.
func findLog(dir string) (string, error) {
	for _, pattern := range []string{"*.seg", "log/*.seg"} {
		found, err := filepath.Glob(filepath.Join(dir, pattern))
		if err != nil {
			return "", usagef("%q: %w", dir, err)
		}
		if len(found) > 0 {
			return filepath.Dir(found[0]), nil
		}
	}
	return "", &exitError{code: exitNotFound, err: fmt.Errorf("there is no log in %s: name the data folder of a server", dir)}
}

func (a *app) printCheck(r *wal.Report) error {
	if a.json() {
		return a.printJSON(r)
	}
	t := a.newTable()
	t.field("Log", r.Dir)
	state := "whole"
	switch {
	case !r.OK:
		state = "damaged"
	case r.TornBytes > 0:
		state = fmt.Sprintf("whole; an unfinished write of %s at the end will be cut off", plural(r.TornBytes, "byte"))
	case !r.Clean:
		state = "whole; it was not closed in order"
	}
	t.field("State", state)
	t.field("Damage", r.Damage)
	t.field("Entries", fmt.Sprintf("%d to %d", r.FirstIndex, r.LastIndex))
	t.field("Files", fmt.Sprintf("%s, %s", count(len(r.Segments)), plural(r.Bytes, "byte")))
	return t.flush()
}

func (a *app) repairLog(dir string, r *wal.Report, yes bool) error {
	question := fmt.Sprintf("%s\nCut the log off there? What was acknowledged after that is lost.", r.Damage)
	if err := a.confirm(yes, question); err != nil {
		return err
	}
	done, err := wal.Repair(dir, nil)
	if err != nil {
		return err
	}
	if a.json() {
		return a.printJSON(done)
	}
	fmt.Fprintf(a.stdout, "The log was cut off and now ends with entry %d.\n", done.LastIndex)
	for _, f := range done.Moved {
		fmt.Fprintf(a.stdout, "What was cut off is in %s\n", f)
	}
	return nil
}
