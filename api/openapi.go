package api

import (
	_ "embed"
	"encoding/json"
	"fmt"
	"sync"
)

//go:embed switchyard.swagger.json
var generated []byte

// OpenAPI returns the OpenAPI (Swagger 2) document of the HTTP API, as JSON. It
// is the generated document with Switchyard's title and its form of errors. The
// caller must not change it.
func OpenAPI() []byte { return openAPI() }

var openAPI = sync.OnceValue(func() []byte {
	doc, err := dress(generated)
	if err != nil { // the document is part of the program; a test covers it
		panic(err)
	}
	return doc
})

// dress puts in what the generator cannot know.
func dress(raw []byte) ([]byte, error) {
	var doc map[string]any
	if err := json.Unmarshal(raw, &doc); err != nil {
		return nil, fmt.Errorf("api: generated OpenAPI document: %w", err)
	}
	doc["info"] = map[string]any{
		"title":       "Switchyard",
		"version":     "v1",
		"description": "A durable task queue. Bytes (payloads and lease tokens) are base64; 64-bit integers are strings; durations are seconds with an s, as \"1.5s\"; times are RFC 3339.",
	}
	definitions, ok := doc["definitions"].(map[string]any)
	if !ok {
		return nil, fmt.Errorf("api: generated OpenAPI document has no definitions")
	}
	delete(definitions, "protobufAny")
	text := func(what string) map[string]any { return map[string]any{"type": "string", "description": what} }
	definitions["rpcStatus"] = map[string]any{
		"type": "object",
		"properties": map[string]any{
			"status":  map[string]any{"type": "integer", "format": "int32", "description": "The HTTP status."},
			"code":    text("The name of the gRPC code: NOT_FOUND."),
			"reason":  text("Machine readable: QUEUE_NOT_FOUND."),
			"message": text("For a person."),
			"metadata": map[string]any{
				"type": "object", "additionalProperties": map[string]any{"type": "string"},
				"description": "The particulars: the field, the limit.",
			},
		},
	}
	return json.MarshalIndent(doc, "", "  ")
}
