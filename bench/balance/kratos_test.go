package balance

import (
	"fmt"

	"github.com/go-kratos/kratos/v2/registry"
	"github.com/go-kratos/kratos/v2/selector"
	"github.com/go-kratos/kratos/v2/selector/p2c"
)

// newKratos builds kratos' p2c selector over the given servers.
func newKratos(ids []int) selector.Selector {
	s := p2c.NewBuilder().Build()
	applyKratos(s, ids)
	return s
}

func applyKratos(s selector.Selector, ids []int) {
	nodes := make([]selector.Node, 0, len(ids))
	for _, id := range ids {
		address := fmt.Sprintf("server-%d:80", id)
		nodes = append(nodes, selector.NewNode("grpc", address, &registry.ServiceInstance{ID: address, Name: "servers"}))
	}
	s.(selector.Rebalancer).Apply(nodes)
}
