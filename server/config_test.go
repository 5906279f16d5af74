package server

import (
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"testing"
	"time"
)

func load(t *testing.T, text string, environ ...string) (Config, error) {
	t.Helper()
	path := filepath.Join(t.TempDir(), "switchyard.yaml")
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	return LoadConfig(path, environ)
}

func TestLoadConfig_fileAndEnvironmentOverrideDefaults(t *testing.T) {
	c, err := load(t, `
# a comment
listen: 127.0.0.1:9000
memory: true
sync_interval: 5ms
log: {level: debug}
limits:
  payload_bytes: 2_000_000
  poll_wait: 30s
`, "SWITCHYARD_LISTEN=127.0.0.1:9001", "SWITCHYARD_LIMITS_BATCH_ITEMS=5", "SWITCHYARD_LOG_FORMAT=json",
		"SWITCHYARD_PPROF=true", "SWITCHYARD_SHUTDOWN_TIMEOUT=1m", "SWITCHYARD_ROLES=storage, matching,frontend",
		"SWITCHYARD_ADDRESS=belongs to the client", "HOME=/")
	if err != nil {
		t.Fatal(err)
	}
	want := DefaultConfig()
	want.Listen, want.Memory, want.SyncInterval, want.Pprof = "127.0.0.1:9001", true, 5*time.Millisecond, true
	want.Log = LogConfig{Level: "debug", Format: "json"}
	want.Limits.PayloadBytes, want.Limits.PollWait, want.Limits.BatchItems = 2_000_000, 30*time.Second, 5
	want.ShutdownTimeout, want.Roles = time.Minute, []string{"storage", "matching", "frontend"}
	if !reflect.DeepEqual(c, want) {
		t.Errorf("got  %+v\nwant %+v", c, want)
	}
}

func TestLoadConfig_emptyIsTheDefault(t *testing.T) {
	for _, text := range []string{"", "# nothing\n", "---\n", "log:\n"} {
		c, err := load(t, text)
		if err != nil || !reflect.DeepEqual(c, DefaultConfig()) {
			t.Errorf("%q: %v", text, err)
		}
	}
	if c, err := LoadConfig("", nil); err != nil || !reflect.DeepEqual(c, DefaultConfig()) {
		t.Errorf("no file: %v", err)
	}
}

func TestLoadConfig_errorsNameTheSetting(t *testing.T) {
	for _, c := range []struct {
		text  string
		env   []string
		parts []string
	}{
		{"lisen: x", nil, []string{"line 1", `unknown setting "lisen"`, `did you mean "listen"`}},
		{"limits:\n  payload_byte: 3", nil, []string{"line 2", `"limits.payload_byte"`, `"limits.payload_bytes"`}},
		{"payload_bytes: 3", nil, []string{`did you mean "limits.payload_bytes"`}},
		{"zzzzzzzzzzzz: 3", nil, []string{`unknown setting "zzzzzzzzzzzz"`}},
		{"bucket_count: many", nil, []string{"line 1", "many"}},
		{"log: debug", nil, []string{"line 1", "log must be a mapping"}},
		{"- a", nil, []string{"line 1", "mapping"}},
		{"a: b\n---\nc: d", nil, []string{"more than one"}},
		{"listen: [", nil, []string{"line 1"}},
		{"listen: x", nil, []string{"listen", "host:port"}},
		{"bucket_count: 0", nil, []string{"bucket_count", "between"}},
		{"durability: maybe", nil, []string{"durability", "fsync"}},
		{"roles: [storage]", nil, []string{"roles", "frontend"}},
		{"roles: [boss]", nil, []string{"roles", "boss"}},
		{"data_dir: ''", nil, []string{"data_dir"}},
		{"log: {level: loud}", nil, []string{"log.level", "loud"}},
		{"log: {format: xml}", nil, []string{"log.format", "xml"}},
		{"limits: {poll_wait: -1s}", nil, []string{"limits.poll_wait"}},
		{"storage: {memtable_bytes: 1}", nil, []string{"storage.memtable_bytes"}},
		{"", []string{"SWITCHYARD_MEMORY=perhaps"}, []string{"SWITCHYARD_MEMORY", "true or false"}},
		{"", []string{"SWITCHYARD_SYNC_INTERVAL=5"}, []string{"SWITCHYARD_SYNC_INTERVAL", "duration"}},
		{"", []string{"SWITCHYARD_BUCKET_COUNT=1e3"}, []string{"SWITCHYARD_BUCKET_COUNT", "whole number"}},
	} {
		_, err := load(t, c.text, c.env...)
		if err == nil {
			t.Errorf("%q %v: no error", c.text, c.env)
			continue
		}
		for _, part := range c.parts {
			if !strings.Contains(err.Error(), part) {
				t.Errorf("%q %v: %q is missing in: %v", c.text, c.env, part, err)
			}
		}
	}
	if _, err := LoadConfig(filepath.Join(t.TempDir(), "none.yaml"), nil); err == nil || !strings.Contains(err.Error(), "none.yaml") {
		t.Errorf("missing file: %v", err)
	}
}

func TestSettings_everyOneCanBeSetFromTheEnvironment(t *testing.T) {
	for _, s := range Settings() {
		c := DefaultConfig()
		text := strings.Trim(s.Default, "[]")
		if err := c.override([]string{s.Env + "=" + text}); err != nil {
			t.Errorf("%s: %v", s.Name, err)
		}
		if !reflect.DeepEqual(c, DefaultConfig()) {
			t.Errorf("%s=%s changed the default", s.Env, text)
		}
	}
}

func TestNewLogger_formats(t *testing.T) {
	for format, want := range map[string]string{"text": "msg=hello", "json": `"msg":"hello"`} {
		var b strings.Builder
		c := DefaultConfig()
		c.Log = LogConfig{Level: "warn", Format: format}
		logger, err := c.NewLogger(&b)
		if err != nil {
			t.Fatal(err)
		}
		logger.Info("quiet")
		logger.Warn("hello")
		if !strings.Contains(b.String(), want) || strings.Contains(b.String(), "quiet") {
			t.Errorf("%s: %s", format, b.String())
		}
	}
}
