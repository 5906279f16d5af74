package server

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"reflect"
	"strconv"
	"strings"
	"time"

	"go.yaml.in/yaml/v3"
)

// envPrefix begins the environment variable of every setting.
const envPrefix = "SWITCHYARD_"

// Setting is one setting of the configuration.
type Setting struct {
	// Name is the setting with dots: "log.level".
	Name string
	// Env is the environment variable that overrides it: SWITCHYARD_LOG_LEVEL.
	Env string
	// Default is its default as it is written in a file.
	Default string

	index []int
}

// Settings returns all settings in the order of Config.
func Settings() []Setting {
	var all []Setting
	def := reflect.ValueOf(DefaultConfig())
	var walk func(t reflect.Type, prefix string, index []int)
	walk = func(t reflect.Type, prefix string, index []int) {
		for i := range t.NumField() {
			f := t.Field(i)
			name := prefix + f.Tag.Get("yaml")
			at := append(append([]int(nil), index...), i)
			if f.Type.Kind() == reflect.Struct {
				walk(f.Type, name+".", at)
				continue
			}
			all = append(all, Setting{
				Name:    name,
				Env:     envPrefix + strings.ToUpper(strings.ReplaceAll(name, ".", "_")),
				Default: written(def.FieldByIndex(at)),
				index:   at,
			})
		}
	}
	walk(def.Type(), "", nil)
	return all
}

// written is a value as one writes it in a file.
func written(v reflect.Value) string {
	if list, ok := v.Interface().([]string); ok {
		return "[" + strings.Join(list, ", ") + "]"
	}
	return fmt.Sprint(v.Interface())
}

// LoadConfig returns the defaults, overridden by the YAML file at path (none
// when path is empty) and then by the environment, given as os.Environ gives
// it. The result is validated. Errors name the file, the line and the setting.
func LoadConfig(path string, environ []string) (Config, error) {
	c := DefaultConfig()
	if path != "" {
		raw, err := os.ReadFile(path)
		if err != nil {
			return Config{}, fmt.Errorf("configuration: %w", err)
		}
		if err := c.parse(raw); err != nil {
			return Config{}, fmt.Errorf("configuration %s: %w", path, err)
		}
	}
	if err := c.override(environ); err != nil {
		return Config{}, fmt.Errorf("configuration from the environment: %w", err)
	}
	if err := c.Validate(); err != nil {
		return Config{}, fmt.Errorf("configuration: %w", err)
	}
	return c, nil
}

// parse reads YAML into c. Keys that are not settings are errors.
func (c *Config) parse(raw []byte) error {
	dec := yaml.NewDecoder(bytes.NewReader(raw))
	var doc yaml.Node
	if err := dec.Decode(&doc); err != nil {
		if errors.Is(err, io.EOF) { // empty, or comments alone
			return nil
		}
		return err
	}
	if err := dec.Decode(new(yaml.Node)); !errors.Is(err, io.EOF) {
		return errors.New("it has more than one YAML document")
	}
	root := doc.Content[0]
	if root.Kind != yaml.MappingNode {
		if root.Tag == "!!null" {
			return nil
		}
		return fmt.Errorf("line %d: it must be a mapping of settings to values", root.Line)
	}
	if err := checkKeys(root, reflect.TypeFor[Config](), ""); err != nil {
		return err
	}
	if err := root.Decode(c); err != nil {
		var te *yaml.TypeError
		if errors.As(err, &te) {
			return errors.New(strings.Join(te.Errors, "; "))
		}
		return err
	}
	return nil
}

// checkKeys refuses keys of a mapping that are not settings.
func checkKeys(node *yaml.Node, t reflect.Type, prefix string) error {
	if node.Kind == yaml.AliasNode {
		node = node.Alias
	}
	if node.Kind != yaml.MappingNode {
		return fmt.Errorf("line %d: %s must be a mapping of settings to values", node.Line, strings.TrimSuffix(prefix, "."))
	}
	known := make(map[string]reflect.Type, t.NumField())
	for i := range t.NumField() {
		known[t.Field(i).Tag.Get("yaml")] = t.Field(i).Type
	}
	for i := 0; i+1 < len(node.Content); i += 2 {
		key, value := node.Content[i], node.Content[i+1]
		ft, ok := known[key.Value]
		if !ok {
			return fmt.Errorf("line %d: unknown setting %q%s", key.Line, prefix+key.Value, nearest(prefix+key.Value))
		}
		if ft.Kind() == reflect.Struct && value.Tag != "!!null" {
			if err := checkKeys(value, ft, prefix+key.Value+"."); err != nil {
				return err
			}
		}
	}
	return nil
}

// nearest suggests the setting that name was probably meant to be.
func nearest(name string) string {
	best, bestDistance := "", len(name)/2+1
	candidates := []string{"log", "matching", "storage", "limits", "node", "cluster", "rebalancer"}
	for _, s := range Settings() {
		candidates = append(candidates, s.Name)
	}
	last := name[strings.LastIndexByte(name, '.')+1:]
	for _, c := range candidates {
		d := distance(name, c)
		// The right name at the wrong place is near too.
		if c[strings.LastIndexByte(c, '.')+1:] == last {
			d = min(d, 1)
		}
		if d < bestDistance {
			best, bestDistance = c, d
		}
	}
	if best == "" {
		return ""
	}
	return fmt.Sprintf("; did you mean %q?", best)
}

// distance is the number of insertions, deletions and replacements that turn a
// into b.
func distance(a, b string) int {
	row := make([]int, len(b)+1)
	for j := range row {
		row[j] = j
	}
	for i := range len(a) {
		diagonal := row[0]
		row[0] = i + 1
		for j := range len(b) {
			cost := diagonal
			if a[i] != b[j] {
				cost++
			}
			diagonal = row[j+1]
			row[j+1] = min(cost, row[j]+1, diagonal+1)
		}
	}
	return row[len(b)]
}

// override sets what the environment says.
func (c *Config) override(environ []string) error {
	env := make(map[string]string, len(environ))
	for _, e := range environ {
		if name, value, ok := strings.Cut(e, "="); ok && strings.HasPrefix(name, envPrefix) {
			env[name] = value
		}
	}
	v := reflect.ValueOf(c).Elem()
	for _, s := range Settings() {
		if text, ok := env[s.Env]; ok {
			if err := set(v.FieldByIndex(s.index), text); err != nil {
				return fmt.Errorf("%s=%q: %w", s.Env, text, err)
			}
		}
	}
	return nil
}

// set parses text into a field.
func set(v reflect.Value, text string) error {
	switch p := v.Addr().Interface().(type) {
	case *string:
		*p = text
	case *bool:
		b, err := strconv.ParseBool(text)
		if err != nil {
			return errors.New("it must be true or false")
		}
		*p = b
	case *time.Duration:
		d, err := time.ParseDuration(text)
		if err != nil {
			return errors.New(`it must be a duration such as "10s" or "250ms"`)
		}
		*p = d
	case *[]string:
		*p = nil
		for part := range strings.SplitSeq(text, ",") {
			if part = strings.TrimSpace(part); part != "" {
				*p = append(*p, part)
			}
		}
	case *float64:
		n, err := strconv.ParseFloat(text, 64)
		if err != nil {
			return errors.New("it must be a number")
		}
		*p = n
	case *int, *int64:
		n, err := strconv.ParseInt(text, 0, v.Type().Bits())
		if err != nil {
			return errors.New("it must be a whole number")
		}
		v.SetInt(n)
	default:
		return fmt.Errorf("settings of type %v cannot be set", v.Type())
	}
	return nil
}

// NewLogger makes the logger that the configuration asks for.
func (c Config) NewLogger(w io.Writer) (*slog.Logger, error) {
	level, err := c.Log.level()
	if err != nil {
		return nil, fmt.Errorf("log.level: %w", err)
	}
	o := &slog.HandlerOptions{Level: level}
	if c.Log.Format == "json" {
		return slog.New(slog.NewJSONHandler(w, o)), nil
	}
	return slog.New(slog.NewTextHandler(w, o)), nil
}
