package routed

import (
	"context"
	"fmt"
	"slices"
	"time"

	v1 "github.com/switchyard-dev/switchyard/api/switchyard/v1"
	"github.com/switchyard-dev/switchyard/shard"
	"github.com/switchyard-dev/switchyard/shard/rebalancer"
	"github.com/switchyard-dev/switchyard/shard/router"
)

// survey asks all replica sets that are known to the router or to one of those.
func survey(ctx context.Context, r *router.Router) (answers []answer, known []string) {
	answers = askAll(ctx, r, r.RouteAll())
	for _, a := range answers {
		known = append(known, a.name)
		known = append(known, a.info.GetKnownReplicaSets()...)
	}
	slices.Sort(known)
	return answers, slices.Compact(known)
}

// Status finds the rebalancer that works and asks what it does. It works on any node, with a
// storage or without. When the one that should work cannot be asked, Phase is "waiting" and Reason says
// so; an error is returned only when no replica set answers.
func Status(ctx context.Context, r *router.Router) (*v1.RebalancerStatusResponse, error) {
	answers, known := survey(ctx, r)
	if err := unanswered(answers); err != nil {
		return nil, err
	}
	on, _ := newest(answers)
	where := rebalancer.Chosen(known)
	var resp *v1.RebalancerStatusResponse
	asking, cancel := context.WithTimeout(ctx, askTime)
	defer cancel()
	err := r.OnMaster(asking, where, func(ctx context.Context, c v1.StorageServiceClient) error {
		var err error
		resp, err = c.RebalancerStatus(ctx, &v1.RebalancerStatusRequest{})
		return err
	})
	if err != nil {
		return &v1.RebalancerStatusResponse{On: on, Where: where, Phase: string(rebalancer.Waiting),
			Reason: rebalancer.OneLine(fmt.Sprintf("the master of replica set %s is the one to rebalance, and cannot be asked: %v", where, err))}, nil
	}
	resp.On = on
	return resp, nil
}

// SetOn tells all replica sets whether buckets are to be rebalanced, and returns the errors of those
// that could not be told: they learn it later. An error says that nobody was told. What is under way is brought
// to its end.
func SetOn(ctx context.Context, r *router.Router, on bool) (untold map[string]error, err error) {
	answers, _ := survey(ctx, r)
	if err := unanswered(answers); err != nil {
		return nil, err
	}
	_, version := newest(answers)
	version = max(version+1, uint64(time.Now().UnixMilli()))
	var to []answer
	untold = map[string]error{}
	for _, a := range answers {
		if a.err != nil {
			untold[a.name] = a.err
		} else {
			to = append(to, a)
		}
	}
	for name, e := range tell(ctx, r, to, on, version) {
		untold[name], err = e, e
	}
	if len(untold) == len(answers) {
		return nil, err
	}
	return untold, nil
}

// unanswered is the error when there is no replica set that answers.
func unanswered(answers []answer) error {
	var err error = &shard.Error{Code: shard.NoSuchReplicaSet, Reason: "no replica set is known here yet"}
	for _, a := range answers {
		if a.err == nil {
			return nil
		}
		err = a.err
	}
	return err
}
