package router

import "fmt"

// Mode says what a call may do and who may answer it.
type Mode int

// Modes of a call. What the master answers is the newest: it has every write that ended
// before the call began. What another replica answers may be older.
const (
	// CallRW writes, on the master. A view in this mode is one of the master's rows.
	CallRW Mode = iota
	// CallRO reads, from the master first, and from other replicas, nearer ones first, while
	// the master cannot be reached.
	CallRO
	// CallBRO reads, balanced over all members.
	CallBRO
	// CallRE reads, from a replica first, nearer ones first, else from the master.
	CallRE
	// CallBRE reads, balanced over the replicas other than the master, else from the master.
	CallBRE
	// CallMR reads, from the master alone. It waits for a new one when there is none.
	CallMR
)

var modeNames = [...]string{"RW", "RO", "BRO", "RE", "BRE", "MR"}

func (m Mode) String() string {
	if m.valid() {
		return modeNames[m]
	}
	return fmt.Sprintf("Mode(%d)", int(m))
}

func (m Mode) valid() bool { return m >= CallRW && m <= CallMR }

// masterFirst reports whether the master is asked before anybody else.
func (m Mode) masterFirst() bool { return m == CallRW || m == CallRO || m == CallMR }
