//! What happened, as a picture: who held the lock when, and what was done to the nodes meanwhile.

use std::error::Error;
use std::path::Path;
use std::time::Duration;

use plotters::coord::Shift;
use plotters::coord::combinators::WithKeyPoints;
use plotters::coord::types::{RangedCoordi32, RangedCoordi64};
use plotters::prelude::*;
use plotters::style::text_anchor::{HPos, Pos, VPos};
use redlock_core::Instant;

use super::fault::{Kind, NODES};
use super::history::History;
use super::record::{Fault, Record};
use super::verdict::Verdict;

/// Draws `record` into an SVG file. A long run would be unreadable as a whole: drawn are `length` of it,
/// around the first overlap where there is one, else the last ones.
pub(super) fn draw(
    record: &Record,
    verdict: &Verdict,
    length: Duration,
    path: &Path,
) -> Result<(), Box<dyn Error>> {
    let history = History::of(record);
    let window = Window::of(record, verdict, length);
    let row_count = i32::try_from(NODES + record.clients.len())?;
    let height = TOP + row_count.unsigned_abs() * ROW_PIXELS + BOTTOM;
    let root = SVGBackend::new(path, (WIDTH, height)).into_drawing_area();
    root.fill(&WHITE)?;
    let (picture, legend) = root.split_vertically(height - BOTTOM + AXIS);
    draw_legend(&legend)?;

    let [from, until] = [window.from, window.until].map(|at| window.micros(at));
    let middles: Vec<i32> = (0..row_count).map(|row| row * ROW + ROW / 2).collect();
    // The first row is at the top.
    let rows = ((row_count * ROW)..0).with_key_points(middles);
    let mut chart = ChartBuilder::on(&picture)
        .caption(window.title(), ("sans-serif", 20))
        .margin_right(20)
        .x_label_area_size(AXIS)
        .y_label_area_size(LABELS)
        .build_cartesian_2d((from..until).with_key_points(ticks(from, until)), rows)?;
    let name = |at: &i32| row_name(record, usize::try_from(at / ROW).unwrap_or(0));
    let seconds = |micros: &i64| format!("{} s", micros / SECOND);
    chart
        .configure_mesh()
        .disable_y_mesh()
        .bold_line_style(GRID)
        .light_line_style(TRANSPARENT)
        .axis_style(GREY)
        .x_label_formatter(&seconds)
        .y_label_formatter(&name)
        .label_style(("sans-serif", 15))
        .draw()?;

    let mut pen = Pen {
        chart: &mut chart,
        window: &window,
    };
    for row in 1..row_count {
        pen.line(row, if row == 5 { &BLACK } else { &GRID })?;
    }
    for [first, second] in &verdict.overlaps {
        let until = first.until.min(second.until);
        pen.mark(0, row_count, [second.from, until], OVERLAP)?;
    }
    let awaited = history.leases.iter();
    for lease in awaited.filter(|lease| lease.wanted < lease.acquired) {
        let row = NODES + lease.client;
        pen.bar(row, [lease.wanted, lease.acquired], WAITS, 8)?;
    }
    for fault in &record.faults {
        for row in fault_rows(fault) {
            let until = fault.until.unwrap_or(window.until);
            if fault.kind.is_momentary() {
                pen.tick(row, fault.from, colour(fault.kind))?;
            } else {
                pen.bar(row, [fault.from, until], colour(fault.kind), 2)?;
            }
        }
    }
    for lease in &history.leases {
        let row = NODES + lease.client;
        pen.bar(row, [lease.acquired, lease.until()], holds(lease.client), 5)?;
    }
    root.present()?;
    Ok(())
}

/// The part of the run that is drawn.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Window {
    began: Instant,
    ended: Instant,
    from: Instant,
    until: Instant,
}

impl Window {
    fn of(record: &Record, verdict: &Verdict, length: Duration) -> Self {
        let [began, ended] = record.time.unwrap_or([Instant::from_micros(0); 2]);
        let until = match verdict.overlaps.first() {
            Some([_, second]) => second.from.saturating_add(length / 2).min(ended),
            None => ended,
        };
        let from = until.saturating_sub(length).max(began);
        Self {
            began,
            ended,
            from,
            until: from.saturating_add(length).min(ended),
        }
    }

    fn title(&self) -> String {
        let seconds = |at: Instant| at.saturating_duration_since(self.began).as_secs();
        let [from, until, all] = [self.from, self.until, self.ended].map(seconds);
        format!(
            "Who held the lock, and what was done to nodes and clients: seconds {from} to {until} of {all}"
        )
    }

    /// Microseconds since the run began.
    fn micros(&self, at: Instant) -> i64 {
        let since = at.saturating_duration_since(self.began).as_micros();
        i64::try_from(since).unwrap_or(i64::MAX)
    }

    /// What of a span is to be seen, as wide as a pixel at least.
    fn clip(&self, [from, until]: [Instant; 2]) -> Option<[i64; 2]> {
        if until < self.from || from > self.until {
            return None;
        }
        let [start, end] = [self.from, self.until].map(|at| self.micros(at));
        let pixel = (end - start) / i64::from(WIDTH - LABELS);
        let from = self.micros(from.max(self.from));
        let until = self.micros(until.min(self.until)).max(from + pixel);
        Some([from, until])
    }
}

type Chart<'a> = ChartContext<
    'a,
    SVGBackend<'a>,
    Cartesian2d<WithKeyPoints<RangedCoordi64>, WithKeyPoints<RangedCoordi32>>,
>;

struct Pen<'a, 'b> {
    chart: &'a mut Chart<'b>,
    window: &'a Window,
}

impl Pen<'_, '_> {
    /// A bar in a row, so many tenths away from its edges.
    fn bar(
        &mut self,
        row: usize,
        span: [Instant; 2],
        colour: RGBAColor,
        inset: i32,
    ) -> Result<(), Box<dyn Error>> {
        let top = i32::try_from(row)? * ROW;
        self.rectangle([top + inset, top + ROW - inset], span, colour)
    }

    /// Over all rows.
    fn mark(
        &mut self,
        first: i32,
        last: i32,
        span: [Instant; 2],
        colour: RGBAColor,
    ) -> Result<(), Box<dyn Error>> {
        self.rectangle([first * ROW, last * ROW], span, colour)
    }

    fn tick(&mut self, row: usize, at: Instant, colour: RGBAColor) -> Result<(), Box<dyn Error>> {
        let wide = self
            .window
            .until
            .saturating_duration_since(self.window.from)
            / 400;
        self.bar(row, [at, at.saturating_add(wide)], colour, 1)
    }

    fn line(&mut self, row: i32, colour: &RGBColor) -> Result<(), Box<dyn Error>> {
        let [from, until] = [self.window.from, self.window.until].map(|at| self.window.micros(at));
        let line = PathElement::new([(from, row * ROW), (until, row * ROW)], colour);
        self.chart.draw_series([line])?;
        Ok(())
    }

    fn rectangle(
        &mut self,
        [top, bottom]: [i32; 2],
        span: [Instant; 2],
        colour: RGBAColor,
    ) -> Result<(), Box<dyn Error>> {
        if let Some([from, until]) = self.window.clip(span) {
            let bar = Rectangle::new([(from, top), (until, bottom)], colour.filled());
            self.chart.draw_series([bar])?;
        }
        Ok(())
    }
}

fn draw_legend(area: &DrawingArea<SVGBackend<'_>, Shift>) -> Result<(), Box<dyn Error>> {
    const COLUMNS: usize = 5;
    const COLUMN: i32 = 330;
    const LINE: i32 = 24;
    const WIDE: i32 = 18;
    const NARROW: i32 = 6;

    let entries = [
        ("holds the lock", holds(0), WIDE),
        ("wants the lock", WAITS, WIDE),
        ("two hold the lock at once", OVERLAP, WIDE),
        ("node stopped", colour(Kind::StopNodes), WIDE),
        ("node dead", colour(Kind::KillNodes), WIDE),
        ("nothing reaches the node", colour(Kind::LoseRequests), WIDE),
        (
            "nothing comes from the node",
            colour(Kind::LoseReplies),
            WIDE,
        ),
        ("scripts flushed", colour(Kind::FlushScripts), NARROW),
        ("connections killed", colour(Kind::KillConnections), NARROW),
        ("node forgets its keys", colour(Kind::FlushKeys), NARROW),
        ("node has forgotten, no vote", colour(Kind::Forget), WIDE),
        ("node failed back", colour(Kind::FailBack), WIDE),
        ("node may evict, no vote", colour(Kind::Evict), WIDE),
        ("operator at work", colour(Kind::Examine), NARROW),
        ("clock of the node stepped", colour(Kind::StepClocks), WIDE),
        ("client paused", colour(Kind::PauseClient), WIDE),
        ("client reaches no node", colour(Kind::CutOffClient), WIDE),
        ("client hears no node", colour(Kind::DeafenClient), WIDE),
        (
            "client killed, device reset",
            colour(Kind::KillClient),
            NARROW,
        ),
    ];
    let style = ("sans-serif", 15)
        .into_font()
        .color(&BLACK)
        .pos(Pos::new(HPos::Left, VPos::Center));
    for (number, (name, colour, wide)) in entries.into_iter().enumerate() {
        let left = i32::try_from(LABELS)? + i32::try_from(number % COLUMNS)? * COLUMN;
        let top = i32::try_from(number / COLUMNS)? * LINE + LINE / 2;
        let place = [(left, top), (left + wide, top + 14)];
        area.draw(&Rectangle::new(place, colour.filled()))?;
        area.draw_text(name, &style, (left + 26, top + 7))?;
    }
    Ok(())
}

/// Whole seconds, so many apart that there are few enough to be read.
fn ticks(from: i64, until: i64) -> Vec<i64> {
    const MOST: i64 = 30;

    let steps = [1, 2, 5, 10, 20, 60].map(|seconds| seconds * SECOND);
    let step = steps.into_iter().find(|step| (until - from) / step <= MOST);
    let step = step.unwrap_or(60 * SECOND);
    (from / step..=until / step)
        .map(|tick| tick * step)
        .filter(|tick| *tick >= from)
        .collect()
}

/// Where a fault is drawn: at the nodes to which it was done, or at the client.
fn fault_rows(fault: &Fault) -> Vec<usize> {
    let client = fault.client.map(|client| NODES + client);
    fault.nodes.iter().copied().chain(client).collect()
}

fn row_name(record: &Record, row: usize) -> String {
    match row.checked_sub(NODES) {
        None => format!("node {}", row + 1),
        Some(client) => record.clients.get(client).cloned().unwrap_or_default(),
    }
}

/// Each client has its own.
fn holds(client: usize) -> RGBAColor {
    const COLOURS: [(u8, u8, u8); 8] = [
        (31, 119, 180),
        (44, 160, 44),
        (23, 150, 170),
        (100, 80, 200),
        (0, 90, 60),
        (70, 130, 250),
        (130, 150, 0),
        (20, 50, 120),
    ];
    let (red, green, blue) = COLOURS[client % COLOURS.len()];
    RGBAColor(red, green, blue, 1.0)
}

const fn colour(kind: Kind) -> RGBAColor {
    match kind {
        Kind::StopNodes | Kind::StopMajority => RGBAColor(240, 170, 60, 1.0),
        Kind::KillNodes => RGBAColor(70, 70, 70, 1.0),
        Kind::FlushScripts => RGBAColor(0, 150, 140, 1.0),
        Kind::KillConnections => RGBAColor(150, 60, 20, 1.0),
        Kind::LoseRequests => RGBAColor(200, 90, 200, 1.0),
        Kind::LoseReplies => RGBAColor(235, 170, 235, 1.0),
        Kind::CutOffClient => RGBAColor(200, 90, 200, 0.6),
        Kind::DeafenClient => RGBAColor(235, 170, 235, 0.6),
        Kind::PauseClient => RGBAColor(240, 170, 60, 0.5),
        Kind::KillClient | Kind::ResetDevice => RGBAColor(20, 20, 20, 1.0),
        Kind::FlushKeys | Kind::EvictUnseen => RGBAColor(220, 0, 0, 1.0),
        Kind::Forget | Kind::RestartEmpty | Kind::Init | Kind::Repair => {
            RGBAColor(160, 90, 60, 1.0)
        }
        Kind::FailBack => RGBAColor(110, 60, 130, 1.0),
        Kind::Evict => RGBAColor(210, 190, 60, 1.0),
        Kind::Examine => RGBAColor(90, 90, 200, 1.0),
        Kind::StepClocks => RGBAColor(120, 200, 80, 1.0),
    }
}

const WAITS: RGBAColor = RGBAColor(190, 200, 215, 1.0);
const OVERLAP: RGBAColor = RGBAColor(255, 0, 0, 0.7);
const GRID: RGBColor = RGBColor(225, 225, 225);
const GREY: RGBColor = RGBColor(120, 120, 120);

/// In microseconds.
const SECOND: i64 = 1_000_000;

const WIDTH: u32 = 1_800;
const ROW_PIXELS: u32 = 38;
const TOP: u32 = 34;
const BOTTOM: u32 = 150;
/// For the seconds below the picture.
const AXIS: u32 = 36;
/// For the names beside it.
const LABELS: u32 = 110;
/// The height of a row, on the scale on which rows are drawn.
const ROW: i32 = 20;

#[cfg(test)]
mod tests {
    use super::super::said::Said;
    use super::*;

    fn at(seconds: u64) -> Instant {
        Instant::from_micros(seconds * 1_000_000)
    }

    /// An hour in which one client held the lock each time for a second.
    fn record(acquired: &[u64]) -> Record {
        let said = acquired.iter().flat_map(|second| {
            let valid_until = at(second + 10);
            let acquired = Said::Acquired {
                at: at(*second),
                valid_until,
            };
            let lets_go = Said::LetsGo {
                at: at(second + 1),
                valid_until,
            };
            [(0, acquired), (0, lets_go)]
        });
        Record {
            time: Some([at(0), at(3_600)]),
            clients: vec!["plain 1".into(), "firmware".into()],
            voices: vec![0, 1],
            said: said.collect(),
            ..Record::default()
        }
    }

    fn window(record: &Record, length: u64) -> [Instant; 2] {
        let window = Window::of(record, &Verdict::on(record), Duration::from_secs(length));
        [window.from, window.until]
    }

    fn draw(record: &Record) -> String {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("plot.svg");
        let verdict = Verdict::on(record);
        super::draw(record, &verdict, Duration::from_secs(60), &path).unwrap();
        std::fs::read_to_string(path).unwrap()
    }

    #[test]
    fn the_end_of_a_long_run_is_drawn() {
        assert_eq!(window(&record(&[5]), 60), [at(3_540), at(3_600)]);
        assert_eq!(window(&record(&[5]), 7_200), [at(0), at(3_600)]);
    }

    #[test]
    fn what_is_around_the_first_overlap_is_drawn() {
        let mut record = record(&[1_000, 2_000]);
        let valid_until = at(1_010);
        let at_once = Said::Acquired {
            at: Instant::from_micros(1_000_500_000),
            valid_until,
        };
        record.said.push((1, at_once));
        let [from, until] = window(&record, 60);
        assert!(at(969) < from && from < at(1_000), "{from:?}");
        assert!(at(1_001) < until && until < at(1_032), "{until:?}");
        assert_eq!(
            draw(&record).matches("#FF0000").count(),
            2,
            "and the legend"
        );
    }

    #[test]
    fn every_row_has_its_name_and_every_holding_its_bar() {
        let count = |acquired: &[u64]| {
            let picture = draw(&record(acquired));
            for name in ["node 1", "node 5", "plain 1", "firmware", "3570 s"] {
                assert!(picture.contains(name), "{name}");
            }
            picture.matches("<rect").count()
        };
        assert_eq!(count(&[3_550, 3_560]), count(&[]) + 2);
        assert_eq!(
            count(&[3_560, 10]),
            count(&[]) + 1,
            "that one is out of sight"
        );
    }

    #[test]
    fn what_is_shorter_than_a_pixel_is_seen() {
        let record = record(&[]);
        let window = Window::of(&record, &Verdict::on(&record), Duration::from_secs(60));
        let [from, until] = window.clip([at(3_560); 2]).unwrap();
        assert!(until > from);
    }

    #[test]
    fn there_are_not_too_many_ticks() {
        for seconds in [1, 7, 60, 600] {
            let ticks = ticks(3_500_000, 3_500_000 + seconds * SECOND);
            assert!(
                (1..=31).contains(&ticks.len()),
                "{seconds} s: {}",
                ticks.len()
            );
        }
    }
}
