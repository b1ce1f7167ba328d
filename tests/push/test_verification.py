"""Handshakes: who is asked, and where calls may go then."""

from __future__ import annotations

from push.model import PLAN, ModelAnswer, ModelEndpoint, answering, raising, run
from quaymaster.net.outbound.failures import OutboundBusy, OutboundFailed, OutboundRefused
from quaymaster.push.verification import EndpointChecks

ORIGIN = "push.example.com"
REFUSED = OutboundRefused("the address may not be called")
FAILED = OutboundFailed("no connection", was_dialed=True)
UNKNOWN = OutboundFailed("the name of the host is not known")
ALLOWED = ModelAnswer(200, {"webhook-allowed-origin": "*"})


def test_an_endpoint_elsewhere_must_say_that_it_wants_calls() -> None:
    async def scenario() -> None:
        for answer, state in (
            (ALLOWED, "active"),
            (ModelAnswer(200), "refused"),
            (ModelAnswer(405), "refused"),
            (ModelAnswer(200, {"webhook-allowed-origin": "*", "webhook-allowed-rate": "0"}), "refused"),
        ):
            client = answering(answer)
            for inside in (None, raising(REFUSED)):
                verified = await EndpointChecks(client, inside, ORIGIN).verify(PLAN)

                assert (verified.state, verified.client) == (state, client)
            (call, _) = client.calls
            assert (call.method, call.url) == ("OPTIONS", PLAN.endpoint)
            assert call.headers == {"WebHook-Request-Origin": ORIGIN}

    run(scenario())


def test_an_endpoint_in_the_networks_of_the_operator_is_called_there_alone_and_need_not_answer() -> None:
    async def scenario() -> None:
        for inside in (answering(ModelAnswer(405)), raising(FAILED)):
            client = ModelEndpoint()

            verified = await EndpointChecks(client, inside, ORIGIN).verify(PLAN)

            assert (verified.state, verified.client) == ("active", inside)
            assert client.calls == []

    run(scenario())


def test_what_an_endpoint_allows_a_minute_is_learned_wherever_it_is() -> None:
    async def scenario() -> None:
        paced = answering(ModelAnswer(200, {"webhook-allowed-origin": "*", "webhook-allowed-rate": "120"}))
        other = answering(ModelAnswer(405, {"webhook-allowed-rate": "120"}))
        for client, inside, rate in ((paced, None, 120), (ModelEndpoint(), paced, 120), (paced, other, None)):
            verified = await EndpointChecks(client, inside, ORIGIN).verify(PLAN)

            assert (verified.state, verified.calls_per_minute) == ("active", rate)
            assert verified.headers == {"WebHook-Request-Origin": ORIGIN}

    run(scenario())


def test_an_endpoint_without_an_address_is_called_nowhere_before_it_has_one() -> None:
    async def scenario() -> None:
        for error in (UNKNOWN, OutboundBusy("1000 calls wait already")):
            client, inside = ModelEndpoint(), raising(error)

            verified = await EndpointChecks(client, inside, ORIGIN).verify(PLAN)

            assert (verified.state, verified.reason) == ("unreachable", str(error))
            assert client.calls == []

    run(scenario())


def test_an_endpoint_that_cannot_be_asked_gets_no_calls() -> None:
    async def scenario() -> None:
        for client, state in ((raising(FAILED), "unreachable"), (raising(REFUSED), "refused")):
            verified = await EndpointChecks(client, None, ORIGIN).verify(PLAN)

            assert (verified.state, verified.reason) == (
                state,
                str(FAILED if state == "unreachable" else REFUSED),
            )

    run(scenario())


def test_nothing_is_asked_where_handshakes_are_switched_off() -> None:
    async def scenario() -> None:
        client, inside = ModelEndpoint(), ModelEndpoint()

        verified = await EndpointChecks(client, inside, None).verify(PLAN)

        assert (verified.state, verified.client) == ("active", client)
        assert client.calls == inside.calls == []
        assert verified.headers == {}

    run(scenario())
