package switchyard

import (
	"time"
	"unsafe"

	"google.golang.org/protobuf/encoding/protowire"
)

// pollResponse is a PollTasksResponse. Its jobs share one copy of the message's
// bytes if that is small; a larger message is copied job by job, so that a slow
// job does not keep the payloads of others in memory.
type pollResponse struct {
	jobs []Job
	// left is, for each job, what was left of the lease when the server
	// answered.
	left []time.Duration
	// now is the clock to use when the server does not tell its own.
	now func() time.Time
}

// Poll responses up to this size are kept as one piece.
const wholePollBytes = 256 << 10

func (r *pollResponse) decodeWire(data []byte) error {
	whole := len(data) <= wholePollBytes
	if whole {
		data = append([]byte(nil), data...)
	}
	n := 0
	var serverTime time.Time
	err := eachField(data, func(field protowire.Number, _ uint64, bytes []byte) (err error) {
		switch field {
		case 1:
			n++
		case 2:
			serverTime, err = decodeTime(bytes)
		}
		return err
	})
	if err != nil || n == 0 {
		return err
	}
	if serverTime.IsZero() {
		serverTime = r.now()
	}
	r.jobs, r.left = make([]Job, 0, n), make([]time.Duration, 0, n)
	return eachItem(data, 1, func(item []byte) error {
		if !whole {
			item = append([]byte(nil), item...)
		}
		r.jobs = append(r.jobs, Job{})
		deadline, err := r.jobs[len(r.jobs)-1].decode(item)
		r.left = append(r.left, deadline.Sub(serverTime))
		return err
	})
}

// decode fills j from a LeasedTask. j keeps parts of data.
func (j *Job) decode(data []byte) (leaseDeadline time.Time, err error) {
	err = eachField(data, func(field protowire.Number, value uint64, bytes []byte) (err error) {
		switch field {
		case 1:
			j.ID = text(bytes)
		case 2:
			j.Kind = text(bytes)
		case 3:
			j.Payload = bytes[:len(bytes):len(bytes)]
		case 4:
			if j.Headers == nil {
				j.Headers = make(map[string]string)
			}
			var name, content string
			err = eachField(bytes, func(field protowire.Number, _ uint64, bytes []byte) error {
				switch field {
				case 1:
					name = text(bytes)
				case 2:
					content = text(bytes)
				}
				return nil
			})
			j.Headers[name] = content
		case 5:
			j.Attempt = int(int32(value))
		case 6:
			j.MaxAttempts = int(int32(value))
		case 7:
			j.AddedAt, err = decodeTime(bytes)
		case 8:
			leaseDeadline, err = decodeTime(bytes)
		case 9:
			j.token = bytes[:len(bytes):len(bytes)]
		case 10:
			j.LastError = text(bytes)
		case 11:
			j.Priority = int(int32(value))
		case 12:
			j.FairnessKey = text(bytes)
		}
		return err
	})
	return leaseDeadline, err
}

// text is data as a string, without a copy: nothing writes to strings' part of a
// message.
func text(data []byte) string {
	if len(data) == 0 {
		return ""
	}
	return unsafe.String(&data[0], len(data))
}

func decodeTime(data []byte) (time.Time, error) {
	var at span
	err := eachField(data, func(field protowire.Number, value uint64, _ []byte) error {
		switch field {
		case 1:
			at.seconds = int64(value)
		case 2:
			at.nanos = int64(int32(value))
		}
		return nil
	})
	return time.Unix(at.seconds, at.nanos), err
}
