package main

import (
	"context"
	"encoding/base64"
	"encoding/hex"
	"fmt"
	"io"
	"os"
	"strings"
	"unicode/utf8"

	"github.com/spf13/cobra"

	v1 "github.com/switchyard-dev/switchyard/api/switchyard/v1"
)

// argFlags say what a function gets.
type argFlags struct {
	hex, file string
	mode      string
	hash      string
	key       string
	number    bool
	bucket    uint32
	limit     int
	reverse   bool
}

var modeNames = []string{"", "rw", "ro", "bro", "re", "bre", "mr"}

func (f *argFlags) addArgs(c *cobra.Command, modes ...string) {
	fs := c.Flags()
	fs.StringVar(&f.hex, "hex", "", "arguments as `HEX` digits")
	fs.StringVar(&f.file, "file", "", "arguments from this `FILE`; - is standard input")
	fs.Var(&choice{value: &f.mode, allowed: modes}, "mode", "who answers: `MODE` "+strings.Join(modes, ", "))
	fs.IntVar(&f.limit, "limit", 1000, "kv.scan: at most so many rows")
	fs.BoolVar(&f.reverse, "reverse", false, "kv.scan: backwards")
	_ = c.RegisterFlagCompletionFunc("mode", cobra.FixedCompletions(modes, cobra.ShellCompDirectiveNoFileComp)) // fails only for a flag that is not there
}

// raw returns the arguments that do not need a helper: of --hex, --file, or as text.
func (f *argFlags) raw(a *app, c *cobra.Command, texts []string) ([]byte, error) {
	given := 0
	for _, yes := range []bool{c.Flags().Changed("hex"), c.Flags().Changed("file"), len(texts) > 0} {
		if yes {
			given++
		}
	}
	switch {
	case given > 1:
		return nil, usageOf(c, fmt.Errorf("the arguments are a text, --hex or --file, one of them"))
	case len(texts) > 1:
		return nil, usageOf(c, fmt.Errorf("the arguments are one text; unexpected argument %q", texts[1]))
	case len(texts) == 1:
		return []byte(texts[0]), nil
	case f.hex != "":
		b, err := hex.DecodeString(strings.TrimPrefix(strings.ReplaceAll(f.hex, " ", ""), "0x"))
		if err != nil {
			return nil, usageOf(c, fmt.Errorf("--hex: %w", err))
		}
		return b, nil
	case f.file == "-":
		return io.ReadAll(a.stdin)
	case f.file != "":
		b, err := os.ReadFile(f.file)
		if err != nil {
			return nil, usagef("--file: %w", err)
		}
		return b, nil
	}
	return nil, nil
}

func (f *argFlags) callMode(fallback string) v1.CallMode {
	m := f.mode
	if m == "" {
		m = fallback
	}
	for i, name := range modeNames {
		if name == m {
			return v1.CallMode(i)
		}
	}
	return v1.CallMode_CALL_MODE_UNSPECIFIED
}

func newShardCallCommand(a *app) *cobra.Command {
	var f argFlags
	c := &cobra.Command{
		Use:   "call FUNCTION [ARGS]",
		Short: "Call a function on the bucket of a key",
		Long: `Call a registered function on a bucket, which --bucket or --key names, and print
its result. ARGS is a text; --hex and --file are for arguments that are none.

The built-in functions take and print readable values, and their bucket is that of
KEY when neither --bucket nor --key is given:

  kv.get KEY                   kv.put KEY VALUE
  kv.delete KEY                kv.cas KEY [EXPECTED [VALUE]]
  kv.scan [FROM [TO]]          (--limit, --reverse; needs --bucket or --key)

kv.cas puts VALUE when the row is EXPECTED; "-" stands for no row.

Modes: rw writes, on the master (the default of kv.put, kv.delete and kv.cas); ro
reads, from the master first (the default of all others); bro reads, balanced; re
from a replica first; bre balanced over replicas; mr from the master alone.`,
		Example: `  switchyard shard call kv.put customer-17 '{"name": "Ann"}'
  switchyard shard call kv.get customer-17
  switchyard shard call kv.scan --bucket 1042 --limit 10
  switchyard shard call insert_band --key Roxette --mode rw '{"year": 1986}'`,
		Args: func(c *cobra.Command, args []string) error {
			if len(args) == 0 {
				return exactArgs("FUNCTION")(c, args)
			}
			return nil
		},
		RunE: func(c *cobra.Command, args []string) error { return a.callFunction(c, &f, args[0], args[1:]) },
	}
	f.addArgs(c, "rw", "ro", "bro", "re", "bre", "mr")
	fs := c.Flags()
	fs.Uint32Var(&f.bucket, "bucket", 0, "the bucket, by its number")
	fs.StringVar(&f.key, "key", "", "the sharding `KEY` whose bucket it is")
	fs.BoolVar(&f.number, "number", false, "the key is a number")
	fs.Var(newChoice(&f.hash, "mpcrc32", "strcrc32"), "hash", "hash `FUNCTION` of the key: mpcrc32 or strcrc32")
	return c
}

func (a *app) callFunction(c *cobra.Command, f *argFlags, fn string, texts []string) error {
	req := &v1.CallFunctionRequest{Function: fn, Bucket: f.bucket}
	key, hasKey := f.key, c.Flags().Changed("key")
	helper := kvHelpers[fn]
	mode := "ro"
	if helper != nil && !c.Flags().Changed("hex") && !c.Flags().Changed("file") {
		args, rowKey, err := helper.args(f, texts)
		if err != nil {
			return usageOf(c, err)
		}
		req.Args, mode = args, helper.mode
		if !hasKey && !c.Flags().Changed("bucket") && rowKey != nil {
			key, hasKey = *rowKey, true
		}
	} else {
		args, err := f.raw(a, c, texts)
		if err != nil {
			return err
		}
		req.Args = args
	}
	switch {
	case hasKey && c.Flags().Changed("bucket"):
		return usageOf(c, fmt.Errorf("--bucket or --key, not both"))
	case hasKey:
		k, err := shardingKey(c, []string{key}, f.number, f.hash)
		if err != nil {
			return err
		}
		req.Key = k
	case f.bucket == 0:
		return usageOf(c, fmt.Errorf("say with --bucket or --key on which bucket"))
	}
	req.Mode = f.callMode(mode)
	return a.callCluster(c.Context(), func(ctx context.Context, cc v1.ClusterServiceClient) error {
		resp, err := cc.CallFunction(ctx, req)
		if err != nil {
			return err
		}
		if helper != nil {
			return a.printKV(helper, resp)
		}
		if a.json() {
			v := map[string]any{"bucket": resp.GetBucket(), "replica_set": resp.GetReplicaSet()}
			addBytes(v, "result", resp.GetResult())
			return a.printJSON(v)
		}
		return a.printResult(resp.GetResult())
	})
}

// addBytes puts bytes into a document: as they are when they are text, else as base64.
func addBytes(v map[string]any, name string, b []byte) {
	if utf8.Valid(b) {
		v[name] = string(b)
	} else {
		v[name+"_base64"] = base64.StdEncoding.EncodeToString(b)
	}
}

// printResult prints the bytes of a result. A terminal gets them harmless.
func (a *app) printResult(b []byte) error {
	if isTerminal(a.stdout) {
		b = []byte(printable(string(b), len(b)+1))
	}
	if len(b) == 0 {
		return nil
	}
	if b[len(b)-1] != '\n' {
		b = append(b, '\n')
	}
	_, err := a.stdout.Write(b)
	return err
}

func newShardMapCallCommand(a *app) *cobra.Command {
	var f argFlags
	var list string
	c := &cobra.Command{
		Use:   "map-call FUNCTION [ARGS]",
		Short: "Call a function on every bucket, or on many",
		Long: `Call a function on every bucket, or on those of --buckets, and print the result of
each that has one. With --mode rw no bucket moves meanwhile; with ro (the default)
each bucket is read at a moment of its own. All of it has --timeout.

Of the built-in functions, kv.scan [FROM [TO]] has a helper.`,
		Example: `  switchyard shard map-call kv.scan --limit 10
  switchyard shard map-call count_bands --buckets 1-100`,
		Args: func(c *cobra.Command, args []string) error {
			if len(args) == 0 {
				return exactArgs("FUNCTION")(c, args)
			}
			return nil
		},
		RunE: func(c *cobra.Command, args []string) error {
			req := &v1.MapFunctionRequest{Function: args[0], Mode: f.callMode("ro")}
			helper := kvHelpers[args[0]]
			var err error
			if helper != nil && !c.Flags().Changed("hex") && !c.Flags().Changed("file") {
				if req.Args, _, err = helper.args(&f, args[1:]); err != nil {
					return usageOf(c, err)
				}
			} else if req.Args, err = f.raw(a, c, args[1:]); err != nil {
				return err
			}
			if list != "" {
				if req.Buckets, err = parseBuckets(c, list); err != nil {
					return err
				}
			}
			return a.callCluster(c.Context(), func(ctx context.Context, cc v1.ClusterServiceClient) error {
				return a.mapFunction(ctx, cc, req, helper)
			})
		},
	}
	f.addArgs(c, "rw", "ro")
	c.Flags().StringVar(&list, "buckets", "", "only these `BUCKETS`")
	return c
}

func (a *app) mapFunction(ctx context.Context, cc v1.ClusterServiceClient, req *v1.MapFunctionRequest, helper *kvHelper) error {
	stream, err := cc.MapFunction(ctx, req)
	if err != nil {
		return err
	}
	array := &arrayWriter{out: a.stdout}
	failed := []failureView{}
	n := 0
	err = eachOf(stream, func(resp *v1.MapFunctionResponse) error {
		for _, f := range resp.GetFailed() {
			failed = append(failed, viewFailure(f))
		}
		for _, r := range resp.GetResults() {
			n++
			if err := a.printMapped(array, helper, r.GetBucket(), r.GetResult()); err != nil {
				return err
			}
		}
		return nil
	})
	if err != nil {
		return err
	}
	if a.json() {
		for _, f := range failed {
			if err := array.add(f); err != nil {
				return err
			}
		}
		if err := array.close(); err != nil {
			return err
		}
	} else {
		a.printFailures(a.stderr, failed)
	}
	fmt.Fprintf(a.stderr, "Called on %s.\n", plural(n, "bucket"))
	if len(failed) > 0 {
		return &exitError{code: exitPartly, err: fmt.Errorf("it failed on %s", plural(len(failed), "bucket"))}
	}
	return nil
}

// printMapped prints the result of one bucket of many; empty ones only as JSON.
func (a *app) printMapped(array *arrayWriter, helper *kvHelper, bucket uint32, result []byte) error {
	if helper != nil {
		v, lines, err := helper.result(result)
		if err != nil {
			return err
		}
		if a.json() {
			v["bucket"] = bucket
			return array.add(v)
		}
		for _, l := range lines {
			if helper.quiet && l == "" {
				continue
			}
			fmt.Fprintf(a.stdout, "%d\t%s\n", bucket, l)
		}
		return nil
	}
	if a.json() {
		v := map[string]any{"bucket": bucket}
		addBytes(v, "result", result)
		return array.add(v)
	}
	if len(result) == 0 {
		return nil
	}
	_, err := fmt.Fprintf(a.stdout, "%d\t%s\n", bucket, printable(string(result), len(result)+1))
	return err
}
