package api_test

import (
	"encoding/json"
	"strings"
	"testing"

	"github.com/switchyard-dev/switchyard/api"
	v1 "github.com/switchyard-dev/switchyard/api/switchyard/v1"
)

func TestOpenAPI_hasEveryCallAndResolves(t *testing.T) {
	var doc struct {
		Info  struct{ Title string }
		Paths map[string]map[string]struct {
			OperationID string
		}
		Definitions map[string]json.RawMessage
	}
	if err := json.Unmarshal(api.OpenAPI(), &doc); err != nil {
		t.Fatal(err)
	}
	if doc.Info.Title != "Switchyard" {
		t.Errorf("title %q", doc.Info.Title)
	}
	operations := map[string]bool{}
	for _, methods := range doc.Paths {
		for _, m := range methods {
			operations[m.OperationID] = true
		}
	}
	for _, m := range v1.TaskService_ServiceDesc.Methods {
		if !operations["TaskService_"+m.MethodName] {
			t.Errorf("TaskService.%s is missing", m.MethodName)
		}
	}
	for _, m := range v1.QueueService_ServiceDesc.Methods {
		if !operations["QueueService_"+m.MethodName] {
			t.Errorf("QueueService.%s is missing", m.MethodName)
		}
	}
	for _, part := range strings.Split(string(api.OpenAPI()), `"#/definitions/`)[1:] {
		name, _, _ := strings.Cut(part, `"`)
		if doc.Definitions[name] == nil {
			t.Errorf("definition %s is missing", name)
		}
	}
}
