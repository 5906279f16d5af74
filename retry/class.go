package retry

// Class is what the outcome of an attempt means for sending the request again.
type Class uint8

const (
	// Success: the request was answered.
	Success Class = iota
	// Ignored: the outcome says nothing, for example because the caller gave up.
	// It is final, and neither a success nor a failure in metrics.
	Ignored
	// Failed: the answer is an error that sending again would not change, or that
	// is not safe to send again. Final.
	Failed
	// NotRetryable: the server or the caller said that the request must not be sent
	// again, whatever any policy says. Final, also for callers above.
	NotRetryable
	// Retryable: it failed, the server may have worked on it, and the policy for
	// this request allows to send it again.
	Retryable
	// Requeueable: it failed and nothing was done, because it was not written or
	// because the server refused it (a NACK). It is safe to send again, whatever
	// the request does.
	Requeueable
	// Unconnected: it failed because no connection could be had. It is safe to send
	// again and costs no server anything, so it draws on no budget.
	Unconnected

	classes = iota
)

var classNames = [classes]string{"success", "ignored", "failed", "not_retryable", "retryable", "requeueable", "unconnected"}

func (c Class) String() string {
	if c < classes {
		return classNames[c]
	}
	return "unknown"
}

// Failure reports whether the class counts as a failure in metrics.
func (c Class) Failure() bool { return c > Ignored }
