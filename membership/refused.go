package membership

// Cause is why a node was refused.
type Cause string

// The causes.
const (
	WrongCluster     Cause = "wrong cluster"
	WrongBucketCount Cause = "wrong bucket_count"
	// NameTaken passes when the other node of that name is gone or is known to be dead.
	NameTaken Cause = "name taken"
	// Unreadable is a node that is not one of Switchyard's, or of a version too old.
	Unreadable Cause = "unreadable"
)

// RefusedError says why a node was not let into the cluster, or why this one was not.
type RefusedError struct {
	// Node is the name of the node that does not fit.
	Node  string
	Cause Cause
	text  string
}

func (e *RefusedError) Error() string { return "membership: refused: " + e.text }

// passes says whether trying again may help.
func (e *RefusedError) passes() bool { return e.Cause == NameTaken }
