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

// link matches a Markdown link to a file of the repository.
var link = regexp.MustCompile(`\]\(([^)#:\s]+)(?:#[^)]*)?\)`)

func TestDocs_linksExist(t *testing.T) {
	root := filepath.Join("..", "..")
	pages, err := filepath.Glob(filepath.Join(root, "docs", "*.md"))
	if err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{"README.md", "CONTRIBUTING.md", "CHANGELOG.md", filepath.Join("bench", "README.md")} {
		pages = append(pages, filepath.Join(root, name))
	}
	links := 0
	for _, page := range pages {
		text, err := os.ReadFile(page)
		if err != nil {
			t.Error(err)
			continue
		}
		for _, match := range link.FindAllSubmatch(text, -1) {
			links++
			target := filepath.Join(filepath.Dir(page), string(match[1]))
			if _, err := os.Stat(target); err != nil {
				t.Errorf("%s links to %s, which does not exist", page, match[1])
			}
		}
	}
	if links < 10 {
		t.Errorf("only %d links found; the pattern is wrong", links)
	}
}
