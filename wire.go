package switchyard

import (
	"errors"
	"fmt"
	"math"
	"slices"
	"time"
	"unicode/utf8"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/encoding"
	grpcproto "google.golang.org/grpc/encoding/proto"
	"google.golang.org/grpc/mem"
	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/proto"

	"github.com/switchyard-dev/switchyard/api/reason"
	v1 "github.com/switchyard-dev/switchyard/api/switchyard/v1"
)

// The calls on a task's way are encoded and decoded by hand: each caller of Add
// encodes its own task, a shared request only strings the pieces together, and
// nothing is allocated per task. The bytes are those of the generated code,
// which tests compare.

// wireRequest is a request that encodes itself.
type wireRequest interface {
	wireSize() int
	appendWire(dst []byte) []byte
}

// wireResponse is a response that decodes itself. data is only valid during the
// call.
type wireResponse interface {
	decodeWire(data []byte) error
}

// codec is gRPC's protobuf codec, and knows this package's own messages as well.
type codec struct{ generated encoding.CodecV2 }

func newCodec() codec { return codec{encoding.GetCodecV2(grpcproto.Name)} }

// Name is part of the content type.
func (codec) Name() string { return grpcproto.Name }

// Marshal implements encoding.CodecV2.
func (c codec) Marshal(v any) (mem.BufferSlice, error) {
	request, ok := v.(wireRequest)
	if !ok {
		return c.generated.Marshal(v)
	}
	size := request.wireSize()
	pool := mem.DefaultBufferPool()
	buf := pool.Get(size)
	out := request.appendWire((*buf)[:0])
	if len(out) != size {
		pool.Put(buf)
		return nil, fmt.Errorf("switchyard: %T has %d bytes where %d were expected", v, len(out), size)
	}
	return mem.BufferSlice{mem.NewBuffer(buf, pool)}, nil
}

// Unmarshal implements encoding.CodecV2.
func (c codec) Unmarshal(data mem.BufferSlice, v any) error {
	response, ok := v.(wireResponse)
	if !ok {
		return c.generated.Unmarshal(data, v)
	}
	buf := data.MaterializeToBuffer(mem.DefaultBufferPool())
	defer buf.Free()
	return response.decodeWire(buf.ReadOnlyData())
}

// appendQueuePrefix encodes the fields with which every request of the task
// service starts: namespace (1) and queue (2).
func appendQueuePrefix(dst []byte, namespace, queue string) []byte {
	dst = appendString(dst, 1, namespace)
	return appendString(dst, 2, queue)
}

func appendString(dst []byte, field protowire.Number, s string) []byte {
	if s == "" {
		return dst
	}
	return protowire.AppendString(protowire.AppendTag(dst, field, protowire.BytesType), s)
}

// sizeBytes is the size of a field of n bytes with its length and tag; fields
// here have numbers below 16, so that tags take one byte. Nothing if n is 0.
func sizeBytes(n int) int {
	if n == 0 {
		return 0
	}
	return 1 + protowire.SizeBytes(n)
}

// span is a length of time or a point in time as the wire has it.
type span struct{ seconds, nanos int64 }

func durationSpan(d time.Duration) span {
	return span{int64(d / time.Second), int64(d % time.Second)}
}

func timeSpan(t time.Time) span { return span{t.Unix(), int64(t.Nanosecond())} }

func (s span) size() int {
	n := 0
	if s.seconds != 0 {
		n += 1 + protowire.SizeVarint(uint64(s.seconds))
	}
	if s.nanos != 0 {
		n += 1 + protowire.SizeVarint(uint64(s.nanos))
	}
	return n
}

// sizeField is the size as a field of its own, which may be empty inside.
func (s span) sizeField() int { return 1 + protowire.SizeBytes(s.size()) }

func (s span) appendField(dst []byte, field protowire.Number) []byte {
	dst = protowire.AppendTag(dst, field, protowire.BytesType)
	dst = protowire.AppendVarint(dst, uint64(s.size()))
	if s.seconds != 0 {
		dst = protowire.AppendVarint(protowire.AppendTag(dst, 1, protowire.VarintType), uint64(s.seconds))
	}
	if s.nanos != 0 {
		dst = protowire.AppendVarint(protowire.AppendTag(dst, 2, protowire.VarintType), uint64(s.nanos))
	}
	return dst
}

// appendTask encodes t as an item of AddTasksRequest.tasks (3). It copies
// everything, so that t may be changed afterwards.
func appendTask(dst []byte, t *Task, id string) ([]byte, error) {
	if err := checkTask(t, id); err != nil {
		return dst, err
	}
	runAt := t.runAt()
	var retryPolicy *v1.RetryPolicy
	retrySize := 0
	if t.Retry != nil {
		retryPolicy = t.Retry.proto()
		retrySize = proto.Size(retryPolicy)
	}

	size := sizeBytes(len(id)) + sizeBytes(len(t.Kind)) + sizeBytes(len(t.Payload))
	for name, value := range t.Headers {
		size += 1 + protowire.SizeBytes(sizeHeader(name, value))
	}
	if !runAt.IsZero() {
		size += timeSpan(runAt).sizeField()
	}
	if t.TTL != 0 {
		size += durationSpan(t.TTL).sizeField()
	}
	if t.MaxAttempts != 0 {
		size += 1 + protowire.SizeVarint(uint64(t.MaxAttempts))
	}
	if retryPolicy != nil {
		size += 1 + protowire.SizeBytes(retrySize)
	}
	if t.LeaseTime != 0 {
		size += durationSpan(t.LeaseTime).sizeField()
	}
	if t.Priority != 0 {
		size += 1 + protowire.SizeVarint(uint64(t.Priority))
	}
	size += sizeBytes(len(t.FairnessKey))
	weight := float32(t.FairnessWeight)
	if weight != 0 {
		size += 1 + protowire.SizeFixed32()
	}

	dst = slices.Grow(dst, 1+protowire.SizeBytes(size))
	dst = protowire.AppendTag(dst, 3, protowire.BytesType)
	dst = protowire.AppendVarint(dst, uint64(size))
	dst = appendString(dst, 1, id)
	dst = appendString(dst, 2, t.Kind)
	if len(t.Payload) > 0 {
		dst = protowire.AppendBytes(protowire.AppendTag(dst, 3, protowire.BytesType), t.Payload)
	}
	for name, value := range t.Headers {
		dst = protowire.AppendTag(dst, 4, protowire.BytesType)
		dst = protowire.AppendVarint(dst, uint64(sizeHeader(name, value)))
		// A map's entry has both fields, even the empty ones.
		dst = protowire.AppendString(protowire.AppendTag(dst, 1, protowire.BytesType), name)
		dst = protowire.AppendString(protowire.AppendTag(dst, 2, protowire.BytesType), value)
	}
	if !runAt.IsZero() {
		dst = timeSpan(runAt).appendField(dst, 5)
	}
	if t.TTL != 0 {
		dst = durationSpan(t.TTL).appendField(dst, 6)
	}
	if t.MaxAttempts != 0 {
		dst = protowire.AppendVarint(protowire.AppendTag(dst, 7, protowire.VarintType), uint64(t.MaxAttempts))
	}
	if retryPolicy != nil {
		dst = protowire.AppendTag(dst, 8, protowire.BytesType)
		dst = protowire.AppendVarint(dst, uint64(retrySize))
		var err error
		if dst, err = (proto.MarshalOptions{Deterministic: true}).MarshalAppend(dst, retryPolicy); err != nil {
			return dst, reason.New(codes.InvalidArgument, reason.InvalidRetryPolicy, nil, "the retry policy cannot be encoded: %v", err)
		}
	}
	if t.LeaseTime != 0 {
		dst = durationSpan(t.LeaseTime).appendField(dst, 9)
	}
	if t.Priority != 0 {
		dst = protowire.AppendVarint(protowire.AppendTag(dst, 10, protowire.VarintType), uint64(t.Priority))
	}
	dst = appendString(dst, 11, t.FairnessKey)
	if weight != 0 {
		dst = protowire.AppendFixed32(protowire.AppendTag(dst, 12, protowire.Fixed32Type), math.Float32bits(weight))
	}
	return dst, nil
}

func sizeHeader(name, value string) int {
	return 2 + protowire.SizeBytes(len(name)) + protowire.SizeBytes(len(value))
}

// checkTask refuses what cannot travel: a request that does not decode would
// fail for all that share it. Everything else is for the server to judge.
func checkTask(t *Task, id string) error {
	switch {
	case !utf8.ValidString(id):
		return reason.New(codes.InvalidArgument, reason.InvalidTaskID, nil, "the task id %q is not valid UTF-8", id)
	case !utf8.ValidString(t.Kind):
		return reason.New(codes.InvalidArgument, reason.InvalidKind, nil, "the kind %q is not valid UTF-8", t.Kind)
	case t.MaxAttempts < math.MinInt32 || t.MaxAttempts > math.MaxInt32:
		return reason.New(codes.InvalidArgument, reason.InvalidMaxAttempts, nil, "max attempts is %d; it must be between 1 and 1000", t.MaxAttempts)
	case t.Priority < math.MinInt32 || t.Priority > math.MaxInt32:
		return reason.New(codes.InvalidArgument, reason.InvalidPriority, nil, "the priority is %d; it must be between 1 and 5", t.Priority)
	case !utf8.ValidString(t.FairnessKey):
		return reason.New(codes.InvalidArgument, reason.InvalidFairness, nil, "the fairness key %q is not valid UTF-8", t.FairnessKey)
	}
	for name, value := range t.Headers {
		if !utf8.ValidString(name) || !utf8.ValidString(value) {
			return reason.New(codes.InvalidArgument, reason.InvalidHeader, map[string]string{"field": name}, "the header %q is not valid UTF-8; put bytes into the payload", name)
		}
	}
	return nil
}

// addRequest is an AddTasksRequest made of encoded pieces.
type addRequest struct {
	prefix []byte
	calls  []*addCall
}

func (r *addRequest) wireSize() int {
	size := len(r.prefix)
	for _, call := range r.calls {
		size += len(call.encoded)
	}
	return size
}

func (r *addRequest) appendWire(dst []byte) []byte {
	dst = append(dst, r.prefix...)
	for _, call := range r.calls {
		dst = append(dst, call.encoded...)
	}
	return dst
}

// addResponse is an AddTasksResponse: it hands the results to the calls, in the
// order of the request.
type addResponse struct{ calls []*addCall }

func (r *addResponse) decodeWire(data []byte) error {
	call, next := 0, 0
	err := eachItem(data, 1, func(item []byte) error {
		for call < len(r.calls) && next == len(r.calls[call].outcomes) {
			call, next = call+1, 0
		}
		if call == len(r.calls) {
			return errResultCount
		}
		var outcome addOutcome
		if err := outcome.decode(item); err != nil {
			return err
		}
		r.calls[call].outcomes[next] = outcome
		next++
		return nil
	})
	if err != nil {
		return err
	}
	for call < len(r.calls) && next == len(r.calls[call].outcomes) {
		call, next = call+1, 0
	}
	if call < len(r.calls) {
		return errResultCount
	}
	return nil
}

var errResultCount = errors.New("switchyard: the server's answer has not one result for each item")

// addOutcome is a result of AddTasksResponse, without the id, which the client
// made.
type addOutcome struct {
	alreadyAdded bool
	err          error
}

func (o *addOutcome) decode(data []byte) error {
	return eachField(data, func(field protowire.Number, value uint64, bytes []byte) (err error) {
		switch field {
		case 2:
			o.alreadyAdded = value != 0
		case 3:
			o.err, err = decodeItemError(bytes)
		}
		return err
	})
}

// tokensRequest is a CompleteTasksRequest or ReleaseTasksRequest.
type tokensRequest struct {
	prefix []byte
	acks   []ack
}

func (r *tokensRequest) wireSize() int {
	size := len(r.prefix)
	for i := range r.acks {
		size += 1 + protowire.SizeBytes(len(r.acks[i].token))
	}
	return size
}

func (r *tokensRequest) appendWire(dst []byte) []byte {
	dst = append(dst, r.prefix...)
	for i := range r.acks {
		dst = protowire.AppendBytes(protowire.AppendTag(dst, 3, protowire.BytesType), r.acks[i].token)
	}
	return dst
}

// itemsResponse is a CompleteTasksResponse or ReleaseTasksResponse. errs stays
// nil when no item failed.
type itemsResponse struct {
	want int
	errs []error
}

func (r *itemsResponse) decodeWire(data []byte) error {
	n := 0
	err := eachItem(data, 1, func(item []byte) error {
		if n == r.want {
			return errResultCount
		}
		n++
		return eachField(item, func(field protowire.Number, _ uint64, bytes []byte) error {
			if field != 1 {
				return nil
			}
			itemErr, err := decodeItemError(bytes)
			if err != nil {
				return err
			}
			if r.errs == nil {
				r.errs = make([]error, r.want)
			}
			r.errs[n-1] = itemErr
			return nil
		})
	})
	if err == nil && n != r.want {
		err = errResultCount
	}
	return err
}

func decodeItemError(data []byte) (itemErr, err error) {
	var item v1.ItemError
	if err := proto.Unmarshal(data, &item); err != nil {
		return nil, err
	}
	return reason.FromItem(&item), nil
}

// eachItem calls f with each value of a repeated field of messages and skips
// everything else.
func eachItem(data []byte, want protowire.Number, f func(item []byte) error) error {
	for len(data) > 0 {
		field, kind, n := protowire.ConsumeTag(data)
		if n < 0 {
			return protowire.ParseError(n)
		}
		data = data[n:]
		if field != want || kind != protowire.BytesType {
			if n = protowire.ConsumeFieldValue(field, kind, data); n < 0 {
				return protowire.ParseError(n)
			}
			data = data[n:]
			continue
		}
		item, n := protowire.ConsumeBytes(data)
		if n < 0 {
			return protowire.ParseError(n)
		}
		data = data[n:]
		if err := f(item); err != nil {
			return err
		}
	}
	return nil
}

// eachField calls f with each varint or bytes field and skips the others. A
// field with the other type than expected shows up as zero or empty.
func eachField(data []byte, f func(field protowire.Number, value uint64, bytes []byte) error) error {
	for len(data) > 0 {
		field, kind, n := protowire.ConsumeTag(data)
		if n < 0 {
			return protowire.ParseError(n)
		}
		data = data[n:]
		var value uint64
		var bytes []byte
		switch kind {
		case protowire.VarintType:
			value, n = protowire.ConsumeVarint(data)
		case protowire.BytesType:
			bytes, n = protowire.ConsumeBytes(data)
		default:
			field, n = 0, protowire.ConsumeFieldValue(field, kind, data)
		}
		if n < 0 {
			return protowire.ParseError(n)
		}
		data = data[n:]
		if err := f(field, value, bytes); err != nil {
			return err
		}
	}
	return nil
}
