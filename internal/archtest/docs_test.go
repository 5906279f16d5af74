package archtest

import (
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

// requirement matches a direct requirement in go.mod.
var requirement = regexp.MustCompile(`(?m)^(?:require)?\s+([a-z0-9][^\s]*\.[^\s]*/[^\s]+) v[^\s]+$`)

func TestDependencies_areExplained(t *testing.T) {
	root := filepath.Join("..", "..")
	mod, err := os.ReadFile(filepath.Join(root, "go.mod"))
	if err != nil {
		t.Fatal(err)
	}
	page, err := os.ReadFile(filepath.Join(root, "docs", "dependencies.md"))
	if err != nil {
		t.Fatal(err)
	}
	for _, match := range requirement.FindAllSubmatch(mod, -1) {
		name := strings.TrimPrefix(string(match[1]), "github.com/")
		if !strings.Contains(string(page), name) {
			t.Errorf("docs/dependencies.md does not say why we depend on %s", name)
		}
	}
}

func TestDependencies_areFoundInGoMod(t *testing.T) {
	mod := "module x\n\nrequire (\n\texample.com/a/b v1.0.0\n\texample.com/c/d v1.0.0 // indirect\n)\n\nrequire example.com/e/f v2.0.0\n"
	var got []string
	for _, match := range requirement.FindAllStringSubmatch(mod, -1) {
		got = append(got, match[1])
	}
	if strings.Join(got, " ") != "example.com/a/b example.com/e/f" {
		t.Errorf("got %v", got)
	}
}
