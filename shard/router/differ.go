package router

import "fmt"

// differ is a cause that says both values.
func differ[T any](ours, theirs T) error {
	return fmt.Errorf("here %v, there %v", ours, theirs)
}
