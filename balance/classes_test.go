package balance

import (
	"fmt"
	"math"
	"testing"
)

func TestWeightClasses_shareByWeightTimesMembers(t *testing.T) {
	for name, policy := range map[string]Policy{
		"p2c classes": P2C{WeightClasses: true}, "p2c": P2C{}, "heap": Heap{}, "round robin": RoundRobin{},
	} {
		var list []Endpoint
		sum := 0.0
		for _, c := range []struct {
			weight  float64
			members int
		}{{1, 1000}, {2, 5}, {10, 150}} {
			for i := range c.members {
				list = append(list, Endpoint{Address: fmt.Sprintf("%v-%d", c.weight, i), Weight: c.weight})
				sum += c.weight
			}
		}
		b, _ := newTest(t, Config{Policy: policy}, 0)
		update(t, b, list)
		const requests = 100_000
		got := map[float64]float64{}
		for range requests {
			p := pick(t, b)
			got[p.Node().weight]++
			p.Done(Success)
		}
		for weight, members := range map[float64]float64{1: 1000, 2: 5, 10: 150} {
			if share, want := got[weight]/requests, weight*members/sum; math.Abs(share-want) > 0.01 {
				t.Errorf("%s: weight %v got %.3f of the requests, want %.3f", name, weight, share, want)
			}
		}
	}
}

func TestWeightClasses_loadPerWeightIsEven(t *testing.T) {
	for name, policy := range map[string]Policy{"p2c classes": P2C{WeightClasses: true}, "p2c": P2C{}, "heap": Heap{}} {
		list := endpoints(503)
		for i := range 3 {
			list[i].Weight = float64(i + 2)
		}
		b, _ := newTest(t, Config{Policy: policy}, 0)
		update(t, b, list)
		hold(t, b, nil, scenarioRequests)
		want := float64(scenarioRequests) / (500 + 2 + 3 + 4)
		for i, n := range b.Nodes()[:3] {
			if got := float64(n.Load()) / float64(i+2); math.Abs(got/want-1) > 0.1 {
				t.Errorf("%s: %.1f per unit of weight %d, want %.1f", name, got, i+2, want)
			}
		}
	}
}

func TestWeightClasses_aBusyClassIsLeftOut(t *testing.T) {
	list := endpoints(4)
	list[0].Weight, list[1].Weight = 5, 5
	b, _ := newTest(t, Config{Policy: RoundRobin{}}, 0)
	update(t, b, list)
	b.Nodes()[0].SetStatus(Busy)
	b.Nodes()[1].SetStatus(Busy)
	hold(t, b, nil, 1000)
	if b.Nodes()[0].Load()+b.Nodes()[1].Load() != 0 {
		t.Error("the busy class got requests")
	}
	if b.Stats().BusyClasses == 0 {
		t.Error("not counted")
	}
	b.Nodes()[2].SetStatus(Busy)
	b.Nodes()[3].SetStatus(Busy)
	pick(t, b) // all are busy: still served
}
