package raftengine

const victimEnv = "SWITCHYARD_TEST_VICTIM_DIR"

func victim() {}
