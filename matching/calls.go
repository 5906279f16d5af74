package matching

type callTable struct{}

func (t *callTable) stop() {}
