package server

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"io"
	"log/slog"
	"net/http"
	"net/http/pprof"
	"strconv"
	"time"

	"github.com/grpc-ecosystem/grpc-gateway/v2/runtime"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promhttp"
	rpccode "google.golang.org/genproto/googleapis/rpc/code"
	"google.golang.org/grpc/codes"
	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/proto"

	"github.com/switchyard-dev/switchyard/api"
	"github.com/switchyard-dev/switchyard/api/reason"
	v1 "github.com/switchyard-dev/switchyard/api/switchyard/v1"
	"github.com/switchyard-dev/switchyard/frontend"
)

const (
	httpHeaderTimeout = 10 * time.Second
	httpBodyTimeout   = 60 * time.Second
	httpWriteTimeout  = 60 * time.Second
	httpIdleTimeout   = 2 * time.Minute
	httpHeaderBytes   = 64 << 10
)

// httpOptions is what the HTTP side is made of.
type httpOptions struct {
	frontend *frontend.Frontend
	registry *prometheus.Registry
	logger   *slog.Logger
	pprof    bool
	ready    func() error // why the node takes no calls
}

// newHTTPServer makes the server of everything that is neither gRPC nor link.
func newHTTPServer(o httpOptions) (*http.Server, error) {
	gateway := runtime.NewServeMux(
		runtime.WithMarshalerOption(runtime.MIMEWildcard, jsonMarshaler{}),
		runtime.WithErrorHandler(func(_ context.Context, _ *runtime.ServeMux, _ runtime.Marshaler, w http.ResponseWriter, _ *http.Request, err error) {
			writeError(w, o.logger, err)
		}),
		runtime.WithRoutingErrorHandler(func(_ context.Context, _ *runtime.ServeMux, _ runtime.Marshaler, w http.ResponseWriter, r *http.Request, code int) {
			writeRoutingError(w, r, o.logger, code)
		}),
	)
	ctx := context.Background()
	if err := v1.RegisterTaskServiceHandlerServer(ctx, gateway, o.frontend); err != nil {
		return nil, err
	}
	if err := v1.RegisterCallServiceHandlerServer(ctx, gateway, o.frontend); err != nil {
		return nil, err
	}
	if err := v1.RegisterQueueServiceHandlerServer(ctx, gateway, o.frontend); err != nil {
		return nil, err
	}
	mux := http.NewServeMux()
	limits := o.frontend.Limits()
	mux.Handle("/v1/", guardHTTP(gateway, limits, o.logger))
	mux.HandleFunc("/openapi.json", func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Content-Type", "application/json")
		w.Write(api.OpenAPI())
	})
	mux.HandleFunc("/healthz", func(w http.ResponseWriter, r *http.Request) { writeText(w, http.StatusOK, "alive\n") })
	mux.HandleFunc("/readyz", func(w http.ResponseWriter, r *http.Request) {
		if err := o.ready(); err != nil {
			writeText(w, http.StatusServiceUnavailable, "not ready: "+err.Error()+"\n")
			return
		}
		writeText(w, http.StatusOK, "ready\n")
	})
	mux.Handle("/metrics", promhttp.HandlerFor(o.registry, promhttp.HandlerOpts{Registry: o.registry, ErrorLog: promLog{o.logger}}))
	if o.pprof {
		mux.HandleFunc("/debug/pprof/", pprof.Index)
		mux.HandleFunc("/debug/pprof/cmdline", pprof.Cmdline)
		mux.HandleFunc("/debug/pprof/profile", pprof.Profile)
		mux.HandleFunc("/debug/pprof/symbol", pprof.Symbol)
		mux.HandleFunc("/debug/pprof/trace", pprof.Trace)
	}
	mux.HandleFunc("/", func(w http.ResponseWriter, r *http.Request) {
		writeRoutingError(w, r, o.logger, http.StatusNotFound)
	})
	return &http.Server{
		Handler:           mux,
		ReadHeaderTimeout: httpHeaderTimeout,
		IdleTimeout:       httpIdleTimeout,
		MaxHeaderBytes:    httpHeaderBytes,
		ErrorLog:          slog.NewLogLogger(o.logger.Handler(), slog.LevelDebug),
	}, nil
}

// guardHTTP reads the body whole and within a limit and a deadline before next
// sees the request. That it is read to its end lets net/http notice when the
// client hangs up, which ends the request's context and so a waiting poll.
func guardHTTP(next http.Handler, limits frontend.Limits, logger *slog.Logger) http.Handler {
	// Bytes in JSON are base64, 4 for 3.
	limit := int64(limits.RequestBytes)/3*4 + 64<<10
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		c := http.NewResponseController(w)
		now := time.Now()
		if err := errors.Join(
			c.SetReadDeadline(now.Add(httpBodyTimeout)),
			c.SetWriteDeadline(now.Add(httpBodyTimeout+max(limits.PollWait, limits.RequestTimeout)+httpWriteTimeout)),
		); err != nil {
			writeError(w, logger, err)
			return
		}
		body, err := io.ReadAll(http.MaxBytesReader(w, r.Body, limit))
		if err != nil {
			var tooLong *http.MaxBytesError
			if errors.As(err, &tooLong) {
				writeError(w, logger, requestTooLarge(limits.RequestBytes))
				return
			}
			w.Header().Set("Connection", "close")
			writeError(w, logger, reason.New(codes.InvalidArgument, reason.InvalidRequest, nil, "the body cannot be read: %v", err))
			return
		}
		if err := c.SetReadDeadline(time.Time{}); err != nil {
			writeError(w, logger, err)
			return
		}
		r.Body = io.NopCloser(bytes.NewReader(body))
		defer func() {
			if p := recover(); p != nil {
				writeError(w, logger, panicked(logger, r.URL.Path, p))
			}
		}()
		next.ServeHTTP(w, r)
	})
}

func requestTooLarge(limit int) error {
	return reason.New(codes.InvalidArgument, reason.RequestTooLarge, map[string]string{"limit": strconv.Itoa(limit)}, "the request is larger than %d bytes; split it", limit)
}

// jsonMarshaler is the JSON of the API: names in camel case (both cases are
// read), bytes in base64, empty fields written. A field that does not exist is
// an error, and so is anything after the document.
type jsonMarshaler struct{}

var (
	jsonOut = protojson.MarshalOptions{EmitDefaultValues: true}
	jsonIn  = protojson.UnmarshalOptions{}
)

func (jsonMarshaler) ContentType(any) string { return "application/json" }

func (jsonMarshaler) Marshal(v any) ([]byte, error) {
	m, ok := v.(proto.Message)
	if !ok {
		return json.Marshal(v)
	}
	data, err := jsonOut.Marshal(m)
	if err != nil {
		return nil, err
	}
	// protojson varies its spaces from build to build; readers with sed and
	// grep need them to stay.
	var out bytes.Buffer
	out.Grow(len(data) + 1)
	if err := json.Compact(&out, data); err != nil {
		return nil, err
	}
	out.WriteByte('\n')
	return out.Bytes(), nil
}

func (jsonMarshaler) Unmarshal(data []byte, v any) error {
	m, ok := v.(proto.Message)
	if !ok {
		return json.Unmarshal(data, v)
	}
	return jsonIn.Unmarshal(data, m)
}

func (j jsonMarshaler) NewDecoder(r io.Reader) runtime.Decoder {
	return runtime.DecoderFunc(func(v any) error {
		data, err := io.ReadAll(r)
		if err != nil {
			return err
		}
		if len(bytes.TrimSpace(data)) == 0 {
			return io.EOF // no body at all is an empty request
		}
		return j.Unmarshal(data, v)
	})
}

func (j jsonMarshaler) NewEncoder(w io.Writer) runtime.Encoder {
	return runtime.EncoderFunc(func(v any) error {
		data, err := j.Marshal(v)
		if err != nil {
			return err
		}
		_, err = w.Write(data)
		return err
	})
}

// errorBody is the JSON of an error.
type errorBody struct {
	Status   int               `json:"status"`
	Code     string            `json:"code"`
	Reason   string            `json:"reason"`
	Message  string            `json:"message"`
	Metadata map[string]string `json:"metadata,omitempty"`
}

// writeError answers with an error.
func writeError(w http.ResponseWriter, logger *slog.Logger, err error) {
	e := reason.From(err)
	if reason.Retryable(e.Reason()) {
		w.Header().Set("Retry-After", "1")
	}
	writeErrorBody(w, logger, errorBody{
		Status: httpStatus(e), Code: rpccode.Code(e.Code()).String(),
		Reason: e.Reason(), Message: e.Message(), Metadata: e.Meta(),
	})
}

func writeErrorBody(w http.ResponseWriter, logger *slog.Logger, body errorBody) {
	data, err := json.Marshal(body)
	if err != nil {
		logger.Error("cannot write an error as JSON", "err", err)
		w.WriteHeader(http.StatusInternalServerError)
		return
	}
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(body.Status)
	if _, err := w.Write(append(data, '\n')); err != nil {
		logger.Debug("the client is gone before its error", "err", err)
	}
}

// writeRoutingError answers a request that no call has.
func writeRoutingError(w http.ResponseWriter, r *http.Request, logger *slog.Logger, code int) {
	message := "there is nothing at " + r.URL.Path + "; /openapi.json lists the calls"
	if code == http.StatusMethodNotAllowed {
		message = r.Method + " is not a method of " + r.URL.Path + "; /openapi.json lists the calls"
	}
	body := errorBody{Status: code, Code: rpccode.Code_UNIMPLEMENTED.String(), Reason: reason.UnknownMethod, Message: message}
	if code == http.StatusBadRequest {
		body.Code, body.Reason, body.Message = rpccode.Code_INVALID_ARGUMENT.String(), reason.InvalidRequest, "the path "+r.URL.Path+" is malformed"
	}
	writeErrorBody(w, logger, body)
}

// httpStatus is the HTTP status of an error: the usual one of its code, except
// where HTTP has a better word.
func httpStatus(e *reason.Error) int {
	switch e.Reason() {
	case reason.PayloadTooLarge, reason.RequestTooLarge:
		return http.StatusRequestEntityTooLarge
	}
	if e.Code() == codes.FailedPrecondition {
		return http.StatusConflict
	}
	return runtime.HTTPStatusFromCode(e.Code())
}

func writeText(w http.ResponseWriter, code int, text string) {
	w.Header().Set("Content-Type", "text/plain; charset=utf-8")
	w.WriteHeader(code)
	io.WriteString(w, text)
}

// promLog lets the metrics handler log.
type promLog struct{ logger *slog.Logger }

func (l promLog) Println(v ...any) { l.logger.Error("metrics", "err", v) }
