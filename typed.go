package switchyard

import (
	"context"
	"encoding/json"
	"fmt"
)

// Codec turns values into payloads and back. It must be safe for concurrent use.
type Codec interface {
	Marshal(v any) ([]byte, error)
	Unmarshal(data []byte, v any) error
}

// JSON is the Codec of encoding/json, the default of the typed helpers.
var JSON Codec = jsonCodec{}

type jsonCodec struct{}

func (jsonCodec) Marshal(v any) ([]byte, error)      { return json.Marshal(v) }
func (jsonCodec) Unmarshal(data []byte, v any) error { return json.Unmarshal(data, v) }

// Handle sets a handler for a kind whose payload is a T as JSON. A payload that
// is no T makes the task dead at once: it will not become better.
func Handle[T any](mux *Mux, kind string, handler func(ctx context.Context, job *Job, value T) error) {
	HandleWith(mux, kind, JSON, handler)
}

// HandleWith is Handle with another codec.
func HandleWith[T any](mux *Mux, kind string, codec Codec, handler func(ctx context.Context, job *Job, value T) error) {
	mux.HandleFunc(kind, func(ctx context.Context, job *Job) error {
		var value T
		if err := codec.Unmarshal(job.Payload, &value); err != nil {
			return NotRetryable(fmt.Errorf("the payload is no %T: %w", value, err))
		}
		return handler(ctx, job, value)
	})
}

// NewTask returns a task with value as JSON for its payload.
func NewTask[T any](kind string, value T) (Task, error) { return NewTaskWith(JSON, kind, value) }

// NewTaskWith is NewTask with another codec.
func NewTaskWith[T any](codec Codec, kind string, value T) (Task, error) {
	payload, err := codec.Marshal(value)
	if err != nil {
		return Task{}, fmt.Errorf("encode the payload of a task of kind %q: %w", kind, err)
	}
	return Task{Kind: kind, Payload: payload}, nil
}

// AddJSON adds a task with value as JSON for its payload; see Client.Add.
func AddJSON[T any](ctx context.Context, client *Client, queue, kind string, value T) (AddResult, error) {
	task, err := NewTask(kind, value)
	if err != nil {
		return AddResult{}, err
	}
	return client.Add(ctx, queue, task)
}
