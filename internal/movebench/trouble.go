package main

import "context"

func troubles(ctx context.Context, opts options, members []int, mib int) error { return nil }
