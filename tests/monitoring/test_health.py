"""When a process should be sent requests."""

from __future__ import annotations

from quaymaster.monitoring.health import Health


def test_a_process_is_ready_only_while_it_serves() -> None:
    health = Health()

    starting = health.why_not_ready()
    health.set_state("serving")
    serving = health.why_not_ready()
    health.set_state("draining")
    draining = health.why_not_ready()

    assert starting == "The process is starting."
    assert serving is None
    assert draining == "The process is draining."


def test_notices_are_shown_while_they_hold_and_do_not_keep_requests_away() -> None:
    health = Health()
    held = ["nothing expires in journal 0"]
    health.add_notices(lambda: held)
    health.add_notices(lambda: ["another"])
    health.set_state("serving")

    assert health.why_not_ready() is None
    assert health.notices() == ["nothing expires in journal 0", "another"]
    held.clear()
    assert health.notices() == ["another"]


def test_a_check_that_fails_makes_it_not_ready_until_it_holds_again() -> None:
    health = Health()
    reasons: list[str | None] = ["The journal has stopped."]
    health.add_check(lambda: reasons[0])
    health.set_state("serving")

    assert health.why_not_ready() == "The journal has stopped."
    reasons[0] = None
    assert health.why_not_ready() is None


def test_a_full_process_is_not_ready_for_new_clients_and_keeps_those_it_has() -> None:
    health = Health()
    full: list[str | None] = ["It is full."]
    stopped: list[str | None] = [None]
    health.add_room_check(lambda: full[0])
    health.add_check(lambda: stopped[0])

    assert (health.why_not_ready(), health.keeps_clients()) == ("The process is starting.", False)
    health.set_state("serving")
    assert (health.why_not_ready(), health.keeps_clients()) == ("It is full.", True)
    stopped[0] = "The journal has stopped."
    assert (health.why_not_ready(), health.keeps_clients()) == ("The journal has stopped.", False)
    full[0] = stopped[0] = None
    assert (health.why_not_ready(), health.keeps_clients()) == (None, True)
    health.set_state("draining")
    assert (health.why_not_ready(), health.keeps_clients()) == ("The process is draining.", True)
