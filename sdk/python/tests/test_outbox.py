"""What waits to be sent."""

import threading

from everbeat.worker import items
from everbeat.worker import outbox as module
from everbeat.worker import worker_pb2 as pb
from everbeat.worker.outbox import Outbox

HELLO = pb.FromWorker(hello=pb.Hello())


def output(number, size=0):
    return pb.FromWorker(output=pb.Output(sequence=number, item="x" * size))


def ended(run_id):
    return pb.FromWorker(ended=pb.Ended(lease=pb.Lease(run_id=run_id)))


def beat(done):
    return pb.FromWorker(heartbeat=pb.Heartbeat(done=done))


def open_box():
    box = Outbox()
    messages = box.messages(box.open(), HELLO)
    assert next(messages) == HELLO
    return box, messages


def test_nothing_but_the_hello_is_sent_before_the_welcome():
    box, messages = open_box()
    box.put(output(1))
    arrived = threading.Event()
    taker = threading.Thread(target=lambda: (next(messages), arrived.set()), daemon=True)
    taker.start()
    assert not arrived.wait(0.05)
    box.welcome([])
    assert arrived.wait(10)


def test_urgent_messages_go_first_and_the_rest_keeps_its_order():
    box, messages = open_box()
    box.welcome([])
    box.put(output(1))
    box.put(output(2))
    pong = pb.FromWorker(pong=pb.Pong(sequence=1))
    box.urge(pong)
    assert [next(messages) for _ in range(3)] == [pong, output(1), output(2)]


def test_the_sender_of_an_old_connection_takes_nothing_of_the_next():
    box, old = open_box()
    box.welcome([])
    new = box.messages(box.open(), HELLO)
    next(new)
    box.put(output(1))
    box.welcome([])
    assert list(old) == []
    assert next(new) == output(1)


def test_what_is_said_again_is_said_once_and_after_what_waited():
    box, messages = open_box()
    box.put(output(1))
    box.put(ended("r1"))
    box.put(beat(1))
    box.welcome([ended("r1")])
    box.finish()
    assert list(messages) == [output(1), beat(1), ended("r1")]


def test_items_are_said_again_in_order_until_they_are_answered():
    box, messages = open_box()
    box.welcome([], answers_items=True)
    for number in range(1, 6):
        box.offer(output(number))
    assert [next(messages) for _ in range(3)] == [output(1), output(2), output(3)]
    box.items_answered(("", 0), 2)
    again = box.messages(box.open(), HELLO)
    next(again)
    box.put(ended("r1"))
    box.welcome([ended("r1")], answers_items=True)
    assert [next(again) for _ in range(4)] == [output(3), output(4), output(5), ended("r1")]
    box.items_answered(("", 0), 5)
    third = box.messages(box.open(), HELLO)
    box.welcome([], answers_items=True)
    box.finish()
    assert list(third) == [HELLO]


def test_what_is_kept_for_an_answer_is_bounded_by_items_and_by_bytes():
    for fits, size in ((items.MOST_KEPT, 0), (1, items.MOST_KEPT_BYTES)):
        box, messages = open_box()
        box.welcome([], answers_items=True)
        for number in range(1, fits + 1):
            assert box.offer(output(number, size))
            next(messages)
        assert not box.offer(output(fits + 1))
        room = box.room(output(fits + 1))
        assert not room.done()
        box.items_answered(("", 0), 1)
        assert room.done()
        assert box.offer(output(fits + 1))


def test_a_server_that_answers_no_items_is_not_waited_for():
    box, messages = open_box()
    box.welcome([])
    for number in range(items.MOST_KEPT + 10):
        assert box.offer(output(number))
        next(messages)
    again = box.messages(box.open(), HELLO)
    box.offer(output(7))
    box.welcome([])
    box.finish()
    assert list(again) == [HELLO, output(7)]


def test_room_is_bounded_by_messages_and_by_bytes():
    box, _ = open_box()
    for number in range(module.ROOM):
        assert box.offer(output(number))
    assert not box.offer(output(0))
    box, _ = open_box()
    assert box.offer(output(1, module.ROOM_BYTES))
    assert not box.offer(output(2))
    box.put(ended("r1"))


def test_whoever_waits_for_room_is_woken_by_room_or_by_a_nudge():
    box, messages = open_box()
    box.welcome([])
    for number in range(module.ROOM):
        box.offer(output(number))
    wanted = [True]
    answers = []
    waiter = threading.Thread(target=lambda: answers.append(box.put_with_room(output(99), lambda: wanted[0])))
    waiter.start()
    room = box.room(output(99))
    assert not room.done()
    next(messages)
    waiter.join(10)
    assert answers == [True]
    assert room.done()
    waiter = threading.Thread(target=lambda: answers.append(box.put_with_room(output(100), lambda: wanted[0])))
    waiter.start()
    wanted[0] = False
    box.nudge()
    waiter.join(10)
    assert answers == [True, False]


def test_of_several_heartbeats_the_latest_is_sent_when_it_is_due():
    box, messages = open_box()
    box.welcome([])
    for done in range(5):
        box.beat(("r1", 1), beat(done))
    assert next(messages) == beat(4)
    box.beat(("r1", 1), beat(5))
    box.beat(("r2", 1), beat(100))
    box.beat(("r1", 1), beat(6))
    assert next(messages) == beat(100)
    assert next(messages) == beat(6)
