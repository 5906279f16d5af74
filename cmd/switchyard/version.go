package main

import (
	"fmt"
	"runtime"
	"runtime/debug"

	"github.com/spf13/cobra"
)

type versionView struct {
	Version  string `json:"version"`
	Revision string `json:"revision,omitempty"`
	Time     string `json:"time,omitempty"`
	Modified bool   `json:"modified"`
	Go       string `json:"go"`
	Platform string `json:"platform"`
}

func newVersionCommand(a *app) *cobra.Command {
	return &cobra.Command{
		Use:     "version",
		Short:   "Show the version of this program",
		Example: "  switchyard version -o json",
		Args:    exactArgs(),
		RunE: func(*cobra.Command, []string) error {
			v := buildVersion()
			if a.json() {
				return a.printJSON(v)
			}
			text := "switchyard " + v.Version
			if v.Revision != "" {
				text += " (" + v.Revision
				if v.Modified {
					text += ", modified"
				}
				text += ")"
			}
			_, err := fmt.Fprintf(a.stdout, "%s %s %s\n", text, v.Go, v.Platform)
			return err
		},
	}
}

// buildVersion is what the linker wrote into this binary.
func buildVersion() versionView {
	v := versionView{Version: "(devel)", Go: runtime.Version(), Platform: runtime.GOOS + "/" + runtime.GOARCH}
	info, ok := debug.ReadBuildInfo()
	if !ok {
		return v
	}
	if info.Main.Version != "" {
		v.Version = info.Main.Version
	}
	for _, s := range info.Settings {
		switch s.Key {
		case "vcs.revision":
			v.Revision = s.Value[:min(12, len(s.Value))]
		case "vcs.time":
			v.Time = s.Value
		case "vcs.modified":
			v.Modified = s.Value == "true"
		}
	}
	return v
}
