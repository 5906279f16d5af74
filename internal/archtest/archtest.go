package archtest

import (
	"errors"
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
)

// Rules says how the packages of a module may depend on each other. All paths
// in it are relative to the module and stand for themselves and everything
// below them, unless a longer path says otherwise; "." stands for the root
// package alone.
type Rules struct {
	// Module is the module's import path.
	Module string
	// Floors gives every package its floor. A package may import what lies on
	// lower floors.
	Floors map[string]int
	// Sideways lists, by importing entry of Floors, the entries of the same
	// floor that it may import too.
	Sideways map[string][]string
	// Pure lists entries of Floors that do no I/O and roll no dice: their shipped
	// files may not import Impure packages or what lies below those. A math/rand/v2
	// generator may be handed in, so that package is not among them.
	Pure, Impure []string
	// Client is the package that others link into their programs, and
	// ClientImports all that it may reach within the module, directly or not.
	Client        string
	ClientImports []string
}

// Violation is one broken rule.
type Violation struct {
	// Where is a file relative to the module's root, or a package's folder.
	Where string
	// What is a sentence.
	What string
}

func (v Violation) String() string { return v.Where + ": " + v.What }

// goPackage is what the check knows about one folder.
type goPackage struct {
	rel     string              // "." for the root
	imports map[string][]string // imported package (relative) → files that import it
	others  map[string][]string // the same for packages outside the module, shipped files only
	files   map[string]*ast.File
}

// Check reads the Go files below root, which must be the root of the module,
// and returns what breaks the rules, sorted by place. Nested modules, testdata
// and folders that the go command ignores are left out. Files of external test
// packages (package x_test) may import what they like.
func Check(root string, rules Rules) ([]Violation, error) {
	packages, err := load(root, rules.Module)
	if err != nil {
		return nil, err
	}
	if len(packages) == 0 {
		return nil, fmt.Errorf("archtest: no Go package below %s", root)
	}
	var out []Violation
	for _, p := range packages {
		out = append(out, rules.checkImports(p)...)
		out = append(out, rules.checkPure(p)...)
		out = append(out, checkComment(p)...)
	}
	out = append(out, rules.checkClient(packages)...)
	slices.SortFunc(out, func(a, b Violation) int {
		return strings.Compare(a.String(), b.String())
	})
	return out, nil
}

func load(root, module string) (map[string]*goPackage, error) {
	packages := map[string]*goPackage{}
	fset := token.NewFileSet()
	err := filepath.WalkDir(root, func(name string, d fs.DirEntry, err error) error {
		if err != nil {
			// Other programs may create and remove temporary files meanwhile.
			if errors.Is(err, fs.ErrNotExist) && name != root {
				return nil
			}
			return err
		}
		if d.IsDir() {
			if name == root {
				return nil
			}
			base := d.Name()
			if base == "testdata" || base == "vendor" || strings.HasPrefix(base, ".") || strings.HasPrefix(base, "_") {
				return filepath.SkipDir
			}
			if _, err := os.Stat(filepath.Join(name, "go.mod")); err == nil {
				return filepath.SkipDir
			}
			return nil
		}
		if !strings.HasSuffix(name, ".go") {
			return nil
		}
		rel, err := filepath.Rel(root, name)
		if err != nil {
			return err
		}
		rel = filepath.ToSlash(rel)
		file, err := parser.ParseFile(fset, name, nil, parser.ImportsOnly|parser.ParseComments)
		if err != nil {
			if errors.Is(err, fs.ErrNotExist) {
				return nil
			}
			return err
		}
		dir := path.Dir(rel)
		p := packages[dir]
		if p == nil {
			p = &goPackage{rel: dir, imports: map[string][]string{}, others: map[string][]string{}, files: map[string]*ast.File{}}
			packages[dir] = p
		}
		if strings.HasSuffix(rel, "_test.go") {
			if strings.HasSuffix(file.Name.Name, "_test") {
				return nil
			}
		} else {
			p.files[path.Base(rel)] = file
		}
		for _, spec := range file.Imports {
			imported, err := strconv.Unquote(spec.Path.Value)
			if err != nil {
				return fmt.Errorf("%s: %w", rel, err)
			}
			switch {
			case imported == module:
				p.imports["."] = append(p.imports["."], rel)
			case strings.HasPrefix(imported, module+"/"):
				to := strings.TrimPrefix(imported, module+"/")
				p.imports[to] = append(p.imports[to], rel)
			case !strings.HasSuffix(rel, "_test.go"):
				p.others[imported] = append(p.others[imported], rel)
			}
		}
		return nil
	})
	return packages, err
}

// entry finds the entry of Floors that decides about a package.
func (r Rules) entry(pkg string) (string, bool) {
	if pkg == "." {
		_, ok := r.Floors["."]
		return ".", ok
	}
	for p := pkg; p != "."; p = path.Dir(p) {
		if _, ok := r.Floors[p]; ok {
			return p, true
		}
	}
	return "", false
}

func named(pkg string) string {
	if pkg == "." {
		return "the root package"
	}
	return pkg
}

func (r Rules) checkImports(p *goPackage) []Violation {
	from, ok := r.entry(p.rel)
	if !ok {
		return []Violation{{p.rel, "the package has no floor; give it one in internal/archtest/floors.go"}}
	}
	var out []Violation
	for imported, files := range p.imports {
		to, ok := r.entry(imported)
		if !ok {
			continue // reported for the imported package itself
		}
		mine, theirs := r.Floors[from], r.Floors[to]
		var what string
		switch {
		case theirs < mine:
			continue
		case theirs > mine:
			what = fmt.Sprintf("imports %s, upward: floor %d must not know floor %d", named(imported), mine, theirs)
		case slices.Contains(r.Sideways[from], to):
			continue
		default:
			what = fmt.Sprintf("imports %s, sideways on floor %d", named(imported), mine)
		}
		for _, file := range files {
			out = append(out, Violation{file, what})
		}
	}
	return out
}

func (r Rules) checkPure(p *goPackage) []Violation {
	entry, _ := r.entry(p.rel)
	if !slices.Contains(r.Pure, entry) {
		return nil
	}
	var out []Violation
	for imported, files := range p.others {
		if imported == "math/rand/v2" || !slices.ContainsFunc(r.Impure, func(i string) bool {
			return imported == i || strings.HasPrefix(imported, i+"/")
		}) {
			continue
		}
		for _, file := range files {
			out = append(out, Violation{file, fmt.Sprintf("imports %s, but %s is pure: no I/O, no dice of its own", imported, entry)})
		}
	}
	return out
}

// checkClient follows the imports of the client package's shipped files.
func (r Rules) checkClient(packages map[string]*goPackage) []Violation {
	var out []Violation
	seen := map[string]bool{r.Client: true}
	todo := []string{r.Client}
	for len(todo) > 0 {
		p := packages[todo[0]]
		todo = todo[1:]
		if p == nil {
			continue
		}
		for imported, files := range p.imports {
			if seen[imported] || !slices.ContainsFunc(files, func(f string) bool { return !strings.HasSuffix(f, "_test.go") }) {
				continue
			}
			seen[imported] = true
			todo = append(todo, imported)
			if !slices.ContainsFunc(r.ClientImports, func(allowed string) bool {
				return imported == allowed || strings.HasPrefix(imported, allowed+"/")
			}) {
				out = append(out, Violation{files[0], fmt.Sprintf("imports %s, so programs that use the SDK would link it; the SDK may reach only %s",
					imported, strings.Join(r.ClientImports, ", "))})
			}
		}
	}
	return out
}

// checkComment demands a doc.go with a package comment. Programs may have it
// in main.go; packages that consist of generated files are left alone.
func checkComment(p *goPackage) []Violation {
	generated, main := true, false
	for _, file := range p.files {
		generated = generated && ast.IsGenerated(file)
		main = main || file.Name.Name == "main"
	}
	if generated && len(p.files) > 0 {
		return nil
	}
	file := p.files["doc.go"]
	if file == nil && main {
		file = p.files["main.go"]
	}
	if file == nil {
		return []Violation{{p.rel, "the package has no doc.go that says what it is for"}}
	}
	if file.Doc == nil || len(strings.Fields(file.Doc.Text())) < 5 {
		return []Violation{{p.rel, "the package comment is missing or says nothing"}}
	}
	return nil
}
