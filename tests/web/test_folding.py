"""Runs of checkpoints are one line; everything else is told as it happened."""

from web.folding import folded, summary


def runs(*types: str) -> list[list[str]]:
    return [list(run) for run in folded(types, str)]


def test_three_in_a_row_are_one() -> None:
    assert runs("Admitted", "Started", "Checkpointed", "SnapshotSaved", "Checkpointed", "Completed") == [
        ["Admitted"],
        ["Started"],
        ["Checkpointed", "SnapshotSaved", "Checkpointed"],
        ["Completed"],
    ]


def test_two_stay_two_and_a_run_may_be_the_end() -> None:
    assert runs("Checkpointed", "Checkpointed", "FaultSeen", "Checkpointed") == [
        ["Checkpointed"],
        ["Checkpointed"],
        ["FaultSeen"],
        ["Checkpointed"],
    ]
    assert runs("Started", *["Checkpointed"] * 9)[1:] == [["Checkpointed"] * 9]


def test_a_run_is_told_by_its_last() -> None:
    assert summary(["Token 4 is durable."]) == "Token 4 is durable."
    assert summary(["a", "b", "c"]) == "3 checkpoints and saved states; the last: c"
