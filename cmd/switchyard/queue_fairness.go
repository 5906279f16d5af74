package main

import (
	"fmt"
	"slices"
	"strconv"
	"strings"

	"github.com/spf13/cobra"

	v1 "github.com/switchyard-dev/switchyard/api/switchyard/v1"
)

// fairnessFlags are a queue's rate limits and fairness keys as flags.
type fairnessFlags struct {
	rateLimit, keyRateLimit string
	weights, limits         []string
}

// none is the value of a flag that takes a setting away.
const none = "none"

func (f *fairnessFlags) add(c *cobra.Command) {
	c.Flags().StringVar(&f.rateLimit, "rate-limit", "", "most tasks handed out per second; 0 stops handing out, \"none\" for no limit")
	c.Flags().StringVar(&f.keyRateLimit, "key-rate-limit", "", "the same for each fairness key, times its weight")
	c.Flags().StringArrayVar(&f.weights, "fairness-weight", nil, "`KEY=WEIGHT` instead of what the key's tasks say; may be given several times, \"none\" clears all settings of keys")
	c.Flags().StringArrayVar(&f.limits, "fairness-limit", nil, "`KEY=RATE` instead of --key-rate-limit; may be given several times")
}

// config fills in the settings that were given and returns their paths. The settings
// of keys replace those that were there.
func (f *fairnessFlags) config(c *cobra.Command, cfg *v1.QueueConfig) (paths []string, err error) {
	rate := func(flag, value, path string, to **float64) {
		if err != nil || !c.Flags().Changed(flag) {
			return
		}
		paths = append(paths, path)
		if value == none {
			return
		}
		var n float64
		if n, err = parseRate(flag, value); err == nil {
			*to = &n
		}
	}
	rate("rate-limit", f.rateLimit, "rate_limit", &cfg.RateLimit)
	rate("key-rate-limit", f.keyRateLimit, "key_rate_limit", &cfg.KeyRateLimit)
	if err != nil || len(f.weights)+len(f.limits) == 0 {
		return paths, err
	}
	paths = append(paths, "fairness_keys")
	if slices.Equal(f.weights, []string{none}) && len(f.limits) == 0 {
		return paths, nil
	}
	key := func(flag, item string) (*v1.FairnessKey, float64, error) {
		at := strings.LastIndexByte(item, '=')
		if at < 0 {
			return nil, 0, fmt.Errorf("--%s %q is not KEY=NUMBER", flag, item)
		}
		n, err := parseRate(flag, item[at+1:])
		for _, k := range cfg.FairnessKeys {
			if k.Key == item[:at] {
				return k, n, err
			}
		}
		k := &v1.FairnessKey{Key: item[:at]}
		cfg.FairnessKeys = append(cfg.FairnessKeys, k)
		return k, n, err
	}
	for _, item := range f.weights {
		k, n, err := key("fairness-weight", item)
		if err != nil {
			return nil, err
		}
		if n == 0 {
			return nil, fmt.Errorf("--fairness-weight %q: a weight must be more than 0", item)
		}
		k.Weight = n
	}
	for _, item := range f.limits {
		k, n, err := key("fairness-limit", item)
		if err != nil {
			return nil, err
		}
		k.RateLimit = &n
	}
	return paths, nil
}

func parseRate(flag, text string) (float64, error) {
	n, err := strconv.ParseFloat(text, 64)
	if err != nil || !(n >= 0) || n > 1e9 {
		return 0, fmt.Errorf("--%s %q is out of range: it must be a number from 0 to 1000000000", flag, text)
	}
	return n, nil
}

func (a *app) fairnessFields(t *table, c *v1.QueueConfig) {
	if c != nil && c.RateLimit != nil {
		t.field("Rate limit", perSecond(c.GetRateLimit()))
	}
	if c != nil && c.KeyRateLimit != nil {
		t.field("Per key", perSecond(c.GetKeyRateLimit())+" times its weight")
	}
	for i, k := range c.GetFairnessKeys() {
		if i == maxKeysShown {
			t.field("", fmt.Sprintf("and %d more", len(c.GetFairnessKeys())-i))
			break
		}
		var parts []string
		if k.GetWeight() > 0 {
			parts = append(parts, fmt.Sprintf("weight %g", k.GetWeight()))
		}
		if k.RateLimit != nil {
			parts = append(parts, "at most "+perSecond(k.GetRateLimit()))
		}
		t.field("Key "+strconv.Quote(k.GetKey()), strings.Join(parts, ", "))
	}
}

// maxKeysShown is how many keys' settings are shown.
const maxKeysShown = 20

type fairnessKeyView struct {
	Key       string   `json:"key"`
	Weight    float64  `json:"weight,omitempty"`
	RateLimit *float64 `json:"rate_limit,omitempty"`
}

func viewFairnessKeys(keys []*v1.FairnessKey) (out []fairnessKeyView) {
	for _, k := range keys {
		out = append(out, fairnessKeyView{k.GetKey(), k.GetWeight(), k.RateLimit})
	}
	return out
}

type priorityView struct {
	Priority       int32    `json:"priority"`
	Ready          int64    `json:"ready"`
	BacklogAge     *float64 `json:"backlog_age_seconds,omitempty"`
	AddRate        float64  `json:"add_rate"`
	DispatchRate   float64  `json:"dispatch_rate"`
	SyncMatchShare float64  `json:"sync_match_share"`
}

func viewPriorities(stats []*v1.PriorityStats) []priorityView {
	out := []priorityView{}
	for _, s := range stats {
		out = append(out, priorityView{s.GetPriority(), s.GetReady(), viewSeconds(s.GetBacklogAge()), s.GetAddRate(), s.GetDispatchRate(), s.GetSyncMatchShare()})
	}
	return out
}
