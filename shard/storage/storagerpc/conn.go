package storagerpc

import (
	"context"

	"google.golang.org/grpc"
)

// DoConn is Do for another service on the member's port for nodes. The context that fn gets has
// the metadata in which this client says what it believes.
func (c *Client) DoConn(ctx context.Context, fn func(context.Context, grpc.ClientConnInterface) error) error {
	c.mu.Lock()
	conn := c.conn
	c.mu.Unlock()
	return c.failure(fn(c.with(ctx), conn))
}
