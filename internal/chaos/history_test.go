package chaos

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"sync"
	"time"

	"github.com/anishathalye/porcupine"

	"github.com/switchyard-dev/switchyard/shard/storage"
)

// operation is one operation of a client on one key. The value "" is no row.
type operation struct {
	Client    int
	Key       string
	Func      string
	Via       string `json:",omitempty"`
	Expected  string `json:",omitempty"`
	Value     string `json:",omitempty"`
	Call, End int64  // ns since the history began

	// Unknown: it may have taken effect, or may later, or never. Else the outcome:
	Unknown bool   `json:",omitempty"`
	Done    bool   `json:",omitempty"`
	Found   string `json:",omitempty"`
	Err     string `json:",omitempty"`
}

// history is what clients did and saw.
type history struct {
	start time.Time

	mu          sync.Mutex
	ops         []operation
	refused     int // operations that were not carried out, and said so
	unknown     int
	lastSuccess int64
	longestGap  time.Duration
	gapEnded    int64 // when the longest gap did
}

func newHistory() *history { return &history{start: time.Now()} }

func (h *history) now() int64 { return int64(time.Since(h.start)) }

func (h *history) add(op operation) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.ops = append(h.ops, op)
	if op.Unknown {
		h.unknown++
		return
	}
	if gap := time.Duration(op.End - h.lastSuccess); gap > h.longestGap {
		h.longestGap, h.gapEnded = gap, op.End
	}
	h.lastSuccess = max(h.lastSuccess, op.End)
}

func (h *history) refuse() {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.refused++
}

// model is a register with delete and compare-and-set.
var model = porcupine.Model{
	Init: func() any { return "" },
	Step: func(state, input, _ any) (bool, any) {
		now, op := state.(string), input.(operation)
		switch op.Func {
		case storage.KVGet:
			return op.Unknown || op.Found == now, now
		case storage.KVPut:
			return true, op.Value
		case storage.KVDelete:
			return op.Unknown || op.Done == (now != ""), ""
		}
		hit := now == op.Expected
		if !op.Unknown && (op.Done != hit || op.Found != now) {
			return false, now
		}
		if hit {
			return true, op.Value
		}
		return true, now
	},
	DescribeOperation: func(input, _ any) string {
		op := input.(operation)
		text := op.Func
		switch op.Func {
		case storage.KVGet:
			return fmt.Sprintf("get → %q", op.Found)
		case storage.KVPut:
			text = fmt.Sprintf("put %q", op.Value)
		case storage.KVDelete:
			text = fmt.Sprintf("delete → %v", op.Done)
		case storage.KVCAS:
			text = fmt.Sprintf("cas %q to %q → %v, found %q", op.Expected, op.Value, op.Done, op.Found)
		}
		if op.Unknown {
			text += " ?"
		}
		return text
	},
	DescribeState: func(state any) string { return fmt.Sprintf("%q", state) },
}

// verdict is what the checker says.
type verdict struct {
	bad     []string // keys whose history is not linearizable
	unclear []string // keys that were too hard to decide in time
	keys    int
}

// check looks whether every key's history is linearizable. A history that is not is written
// to a folder, when one is given.
func (h *history) check(perKey time.Duration, dir string) (v verdict, err error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	byKey := map[string][]operation{}
	end := int64(0)
	for _, op := range h.ops {
		byKey[op.Key] = append(byKey[op.Key], op)
		end = max(end, op.End, op.Call)
	}
	v.keys = len(byKey)
	for key, ops := range byKey {
		events := make([]porcupine.Operation, len(ops))
		for i, op := range ops {
			back := op.End
			if op.Unknown {
				back = end + 1 // it may come after everything, which is never
			}
			events[i] = porcupine.Operation{ClientId: op.Client, Input: op, Call: op.Call, Return: back}
		}
		switch result := porcupine.CheckOperationsTimeout(model, events, perKey); result {
		case porcupine.Illegal:
			v.bad = append(v.bad, key)
			if dir != "" {
				if err := write(dir, key, ops, events); err != nil {
					return v, err
				}
			}
		case porcupine.Unknown:
			v.unclear = append(v.unclear, key)
		}
	}
	return v, nil
}

// write keeps the history of a key and a picture of it.
func write(dir, key string, ops []operation, events []porcupine.Operation) error {
	name := filepath.Join(dir, filepath.Clean(fmt.Sprintf("key-%x", key)))
	b, err := json.MarshalIndent(ops, "", " ")
	if err != nil {
		return err
	}
	if err := os.WriteFile(name+".json", b, 0o600); err != nil {
		return err
	}
	_, info := porcupine.CheckOperationsVerbose(model, events, 10*time.Second)
	return porcupine.VisualizePath(model, info, name+".html")
}
