"""What a traced attempt finds in its environment beside what the user put there."""

from __future__ import annotations

from supervisor.launch.tracing import variables


def test_nccl_writes_its_log_and_the_recorder_its_rings_beside_the_output() -> None:
    told = variables({}, "/state/attempts/0002")
    assert (told["NCCL_DEBUG"], told["NCCL_DEBUG_FILE"]) == ("INFO", "/state/attempts/0002/nccl-%h-%p.log")
    assert told["TORCH_FR_BUFFER_SIZE"] == told["TORCH_NCCL_TRACE_BUFFER_SIZE"] == "2000"
    assert told["TORCH_NCCL_DUMP_ON_TIMEOUT"] == "1"
    assert told["TORCH_FR_DUMP_TEMP_FILE"] == told["TORCH_NCCL_DEBUG_INFO_TEMP_FILE"] == "/state/attempts/0002/flight-rank-"


def test_what_the_user_set_stays_and_a_log_that_they_look_at_is_not_moved() -> None:
    theirs = {"NCCL_DEBUG": "WARN", "TORCH_FR_BUFFER_SIZE": "50"}
    told = variables(theirs, "/state/attempts/0002")
    assert not {"NCCL_DEBUG", "NCCL_DEBUG_FILE", "TORCH_FR_BUFFER_SIZE"} & set(told)
    assert told["TORCH_NCCL_DUMP_ON_TIMEOUT"] == "1"
