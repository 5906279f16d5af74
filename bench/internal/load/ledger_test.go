package load

import "testing"

func TestLedger_acceptsEveryTaskOnce(t *testing.T) {
	l := NewLedger()
	for _, p := range l.Batch(1000) {
		if _, ok := l.Handle(p); !ok {
			t.Fatalf("payload %q refused", p)
		}
	}
	if err := l.Check(1000, 0); err != nil {
		t.Fatal(err)
	}
	if l.Handled() != 1000 || l.Duplicates() != 0 {
		t.Fatalf("handled %d, duplicates %d", l.Handled(), l.Duplicates())
	}
}

func TestLedger_catchesLostWork(t *testing.T) {
	l := NewLedger()
	for i, p := range l.Batch(10) {
		if i != 3 {
			l.Handle(p)
		}
	}
	if err := l.Check(10, 0); err == nil {
		t.Fatal("a lost task was not noticed")
	}
	if err := l.Check(10, 1); err != nil {
		t.Fatalf("the task is still in the queue: %v", err)
	}
}

func TestLedger_catchesDuplicatesAndDamage(t *testing.T) {
	l := NewLedger()
	p := l.Payload()
	l.Handle(p)
	l.Handle(p)
	if l.Handled() != 1 || l.Duplicates() != 1 {
		t.Fatalf("handled %d, duplicates %d", l.Handled(), l.Duplicates())
	}
	q := l.Payload()
	q[200] ^= 1
	if _, ok := l.Handle(q); ok {
		t.Fatal("a damaged payload was accepted")
	}
	if _, ok := l.Handle(NewLedger().Payload()); ok {
		t.Fatal("a payload of another run was accepted")
	}
	if err := l.Check(1, 0); err == nil {
		t.Fatal("damage was not noticed")
	}
}
