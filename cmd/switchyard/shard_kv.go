package main

import (
	"fmt"

	v1 "github.com/switchyard-dev/switchyard/api/switchyard/v1"
	"github.com/switchyard-dev/switchyard/shard"
	"github.com/switchyard-dev/switchyard/shard/storage"
)

// kvHelper turns arguments and results of a built-in function into readable values.
type kvHelper struct {
	// mode is that of a call that names none.
	mode string
	// args makes the arguments, and says of which row they are, if of one.
	args func(f *argFlags, texts []string) (args []byte, key *string, err error)
	// result makes a document and lines of text of a result.
	result func(result []byte) (map[string]any, []string, error)
	// quiet: without lines there is nothing to be said.
	quiet bool
}

// noRow stands for a row that is not there.
const noRow = "-"

func need(texts []string, least, most int, what string) error {
	if len(texts) < least || len(texts) > most {
		return fmt.Errorf("the arguments are %s, not %d", what, len(texts))
	}
	return nil
}

// optionalRow is nil for a row that is not to be there.
func optionalRow(texts []string, i int) []byte {
	if i >= len(texts) || texts[i] == noRow {
		return nil
	}
	return []byte(texts[i])
}

var kvHelpers = map[string]*kvHelper{
	storage.KVGet: {
		mode: "ro",
		args: func(_ *argFlags, t []string) ([]byte, *string, error) {
			if err := need(t, 1, 1, "KEY"); err != nil {
				return nil, nil, err
			}
			return storage.KVGetArgs([]byte(t[0])), &t[0], nil
		},
		result: func(b []byte) (map[string]any, []string, error) {
			value, found, err := storage.KVGetResult(b)
			v := map[string]any{"found": found}
			if !found || err != nil {
				return v, nil, err
			}
			addBytes(v, "value", value)
			return v, []string{string(value)}, nil
		},
		quiet: true,
	},
	storage.KVPut: {
		mode: "rw",
		args: func(_ *argFlags, t []string) ([]byte, *string, error) {
			if err := need(t, 2, 2, "KEY VALUE"); err != nil {
				return nil, nil, err
			}
			return storage.KVPutArgs(shard.MPCRC32String(t[0]), []byte(t[0]), []byte(t[1])), &t[0], nil
		},
		result: func([]byte) (map[string]any, []string, error) { return map[string]any{}, nil, nil },
		quiet:  true,
	},
	storage.KVDelete: {
		mode: "rw",
		args: func(_ *argFlags, t []string) ([]byte, *string, error) {
			if err := need(t, 1, 1, "KEY"); err != nil {
				return nil, nil, err
			}
			return storage.KVDeleteArgs([]byte(t[0])), &t[0], nil
		},
		result: func(b []byte) (map[string]any, []string, error) {
			found, err := storage.KVDeleteResult(b)
			return map[string]any{"found": found}, []string{map[bool]string{true: "deleted", false: "there was no such row"}[found]}, err
		},
	},
	storage.KVCAS: {
		mode: "rw",
		args: func(_ *argFlags, t []string) ([]byte, *string, error) {
			if err := need(t, 1, 3, "KEY [EXPECTED [VALUE]]"); err != nil {
				return nil, nil, err
			}
			return storage.KVCASArgs(shard.MPCRC32String(t[0]), []byte(t[0]), optionalRow(t, 1), optionalRow(t, 2)), &t[0], nil
		},
		result: func(b []byte) (map[string]any, []string, error) {
			done, found, err := storage.KVCASResult(b)
			v := map[string]any{"done": done}
			line := "done"
			if !done {
				line = "not done: there is no such row"
				if found != nil {
					line = "not done: the value is " + string(found)
				}
			}
			if found != nil {
				addBytes(v, "found", found)
			}
			return v, []string{line}, err
		},
	},
	storage.KVScan: {
		mode: "ro",
		args: func(f *argFlags, t []string) ([]byte, *string, error) {
			if err := need(t, 0, 2, "[FROM [TO]]"); err != nil {
				return nil, nil, err
			}
			return storage.KVScanArgs(optionalRow(t, 0), optionalRow(t, 1), f.reverse, f.limit), nil, nil
		},
		result: func(b []byte) (map[string]any, []string, error) {
			rows, more, err := storage.KVScanResult(b)
			list := []map[string]any{}
			var lines []string
			for _, r := range rows {
				row := map[string]any{}
				addBytes(row, "key", r.Key)
				addBytes(row, "value", r.Value)
				list = append(list, row)
				lines = append(lines, printable(string(r.Key), len(r.Key)+1)+"\t"+printable(string(r.Value), len(r.Value)+1))
			}
			return map[string]any{"rows": list, "more": more}, lines, err
		},
		quiet: true,
	},
}

// printKV prints the result of a built-in function.
func (a *app) printKV(h *kvHelper, resp *v1.CallFunctionResponse) error {
	v, lines, err := h.result(resp.GetResult())
	if err != nil {
		return err
	}
	if found, ok := v["found"].(bool); ok && !found && h == kvHelpers[storage.KVGet] {
		if a.json() {
			v["bucket"], v["replica_set"] = resp.GetBucket(), resp.GetReplicaSet()
			if err := a.printJSON(v); err != nil {
				return err
			}
		}
		return &exitError{code: exitNotFound, err: fmt.Errorf("bucket %d has no such row", resp.GetBucket())}
	}
	if a.json() {
		v["bucket"], v["replica_set"] = resp.GetBucket(), resp.GetReplicaSet()
		return a.printJSON(v)
	}
	for _, l := range lines {
		if err := a.printResult([]byte(l)); err != nil {
			return err
		}
	}
	if more, _ := v["more"].(bool); more {
		fmt.Fprintln(a.stderr, "There are more; --limit takes up to", storage.MaxKVScan, "rows.")
	}
	return nil
}
