//! Everything at once, from a seed.

use std::collections::HashSet;

use redlock_core::transport::{Command, Reply, Verb};
use redlock_core::{Token, Transport};

use crate::dice::Dice;
use crate::wire::{Entry, Server};
use crate::world::*;

/// Something happens to the network or to the node.
fn happen(dice: &mut Dice, world: &World, server: &Server<'_>) {
    match dice.roll(10) {
        0 => server.hang(dice.pick(&[0, 1, 20, 200, usize::MAX])),
        1..4 => server.resume(),
        4 => server.cut(),
        5 => server.enter(Entry::REFUSED),
        6 => server.enter(Entry::After(ms(dice.pick(&[20, 80, 500, 4_000])))),
        7 => server.enter(Entry::OPEN),
        8 => server.answer_with(dice.pick(&["garbage", "-LOADING x\r\n", ">0\r\n+QUEUED\r\n"])),
        _ => world
            .clock
            .advance(ms(dice.pick(&[1, 10, 100, 1_000, 6_000]))),
    }
}

/// The `number`th token of a run, in digits.
fn numbered(number: usize) -> Token {
    Token::from_bytes(format!("{number:020}").into_bytes().try_into().unwrap())
}

fn name(command: &Command<'_>) -> String {
    let verb = match command.verb {
        Verb::Acquire { .. } => "SET",
        Verb::Extend { .. } | Verb::Keep { .. } => "EXTEND",
        Verb::Release => "RELEASE",
    };
    format!("{verb} {}", command.token.as_bytes().escape_ascii())
}

fn wire_form(reply: Reply) -> &'static [u8] {
    match reply {
        ACQUIRED => b"+OK\r\n",
        HELD => b"$-1\r\n",
        Reply::Extended(None) | Reply::Released => b":1\r\n",
        _ => b":0\r\n",
    }
}

/// Returns how many commands the node received, how many were answered, and how many acquires are known not to have
/// been sent.
fn run(seed: u64) -> [usize; 3] {
    let mut dice = Dice::new(seed);
    let (world, server) = start();
    if dice.roll(2) == 0 {
        server.send_at_once();
    }
    server.move_by(dice.pick(&[1, 3, 20, 1_000]));
    let mut node = server.node();
    if dice.roll(2) == 0 {
        server.require("default", "wordword");
        node = node.password("wordword").database(0);
    }
    let mut answered = 0;
    let mut called = Vec::new();
    let mut never_left = Vec::new();
    for number in 100..250 {
        if dice.roll(3) == 0 {
            happen(&mut dice, world, server);
        }
        let fresh = numbered(number);
        let recent = numbered(number - dice.roll(4));
        let command = match dice.roll(6) {
            0..3 => acquire(&fresh),
            3 => extend(&recent),
            _ => release(&recent),
        };
        called.push(name(&command));
        let result = match dice.roll(4) {
            0 => poll_times(dice.roll(4), node.execute(&command)),
            1 => poll_times(dice.roll(400), node.execute(&command)),
            _ => world.run_for(ms(50), node.execute(&command)),
        };
        if is_nothing_to_release(result) {
            assert_eq!(server.answer_to(&name(&command)), None);
            never_left.push(name(&acquire(&recent)));
            continue;
        }
        let Some(Ok(reply)) = result else {
            continue;
        };
        answered += 1;
        match server.answer_to(&name(&command)) {
            Some(answer) => {
                assert_eq!(
                    answer.escape_ascii().to_string(),
                    wire_form(reply).escape_ascii().to_string(),
                    "seed {seed}: {command:?}"
                );
            }
            None => panic!("seed {seed}: {command:?} was not heard"),
        }
    }
    server.resume();
    server.enter(Entry::OPEN);
    world.clock.advance(ms(10_000));
    world.run(node.close());

    let heard = server.heard();
    for (place, name) in heard
        .iter()
        .enumerate()
        .filter(|(_, name)| name.starts_with("SET"))
    {
        assert!(
            !heard[..place].contains(name),
            "seed {seed}: {name} was sent twice"
        );
        assert!(!never_left.contains(name), "seed {seed}: {name} has left");
    }
    let mut released = HashSet::new();
    for connection in 0..server.connections() {
        let mut calls = called.iter();
        for heard in server.heard_on(connection) {
            // A release is sent again if its answer was lost or an error.
            let is_again = heard.starts_with("RELEASE") && !released.insert(heard.clone());
            let is_next = is_again || heard.starts_with("AUTH") || calls.any(|call| *call == heard);
            assert!(is_next, "seed {seed}: {heard} is out of order");
        }
    }
    // And after all that it is a node as any other.
    let free = Token::from_bytes([0xff; Token::LEN]);
    // Each time another key: the answer may be lost of an acquire that was carried out.
    let mut result = Ok(HELD);
    for key in 0..50 {
        result = world.execute(&mut node, &acquire_of(&[key], &free));
        if result.is_ok() {
            break;
        }
        // What was scripted and not yet asked for.
        world.clock.advance(ms(1_600));
    }
    assert_eq!(result, Ok(ACQUIRED), "seed {seed}");
    [heard.len(), answered, never_left.len()]
}

#[test]
fn whatever_happens_replies_belong_to_their_commands_and_commands_arrive_once_and_in_order() {
    let mut sums = [0; 3];
    for seed in 0..400 {
        let counts = run(seed);
        sums.iter_mut()
            .zip(counts)
            .for_each(|(sum, count)| *sum += count);
    }
    assert!(
        sums.iter()
            .zip([10_000, 10_000, 1_000])
            .all(|(sum, least)| *sum > least),
        "{sums:?}"
    );
}
