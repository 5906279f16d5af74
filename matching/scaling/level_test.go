package scaling

import (
	"encoding/json"
	"os"
	"testing"
)

func TestLevel_vectors(t *testing.T) {
	text, err := os.ReadFile("testdata/compact8.json")
	if err != nil {
		t.Fatal(err)
	}
	var v struct {
		Decode []int64
		Encode [][2]int64
		Update []struct {
			Value int64
			Prev  byte
			Want  byte
		}
		UpdateRuns []struct {
			Start  byte
			Values []int64
			Codes  []int
		} `json:"update_runs"`
	}
	if err := json.Unmarshal(text, &v); err != nil {
		t.Fatal(err)
	}
	if len(v.Decode) != 256 || len(v.Encode) == 0 || len(v.Update) == 0 || len(v.UpdateRuns) == 0 {
		t.Fatal("the vectors are not all there")
	}
	for b, want := range v.Decode {
		if got := Backlog(byte(b)); got != want {
			t.Errorf("Backlog(%d) = %d, want %d", b, got, want)
		}
	}
	for _, e := range v.Encode {
		if got := Level(e[0]); int64(got) != e[1] {
			t.Errorf("Level(%d) = %d, want %d", e[0], got, e[1])
		}
	}
	for _, u := range v.Update {
		if got := NextLevel(u.Value, u.Prev); got != u.Want {
			t.Errorf("NextLevel(%d, %d) = %d, want %d", u.Value, u.Prev, got, u.Want)
		}
	}
	for i, r := range v.UpdateRuns {
		level := r.Start
		for k, value := range r.Values {
			if level = NextLevel(value, level); int(level) != r.Codes[k] {
				t.Fatalf("run %d, step %d: NextLevel(%d) = %d, want %d", i, k, value, level, r.Codes[k])
			}
		}
	}
}
