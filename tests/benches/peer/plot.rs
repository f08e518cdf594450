//! The latencies of a lock and an unlock, as a picture: the time that a part of all cycles does not exceed.

use std::error::Error;
use std::path::Path;
use std::time::Duration;

use plotters::prelude::*;

/// The times of one client, with all servers up or with one hung.
pub(crate) struct Latencies {
    pub(crate) name: &'static str,
    pub(crate) state: &'static str,
    pub(crate) is_hung: bool,
    pub(crate) times: Vec<Duration>,
}

/// Draws one curve for each of `latencies` into an SVG file. Each tick to the right is a tenth of the cycles of the tick before, so
/// that the slowest are seen too.
pub(crate) fn draw(latencies: &[Latencies], path: &Path) -> Result<(), Box<dyn Error>> {
    let all = || latencies.iter().flat_map(|curve| &curve.times);
    let least = all().min().copied().unwrap_or_default();
    let most = all().max().copied().unwrap_or_default();
    let root = SVGBackend::new(path, (WIDTH, HEIGHT)).into_drawing_area();
    root.fill(&WHITE)?;
    let title = "Lock and unlock, one task, five servers and the client on one machine";
    let mut chart = ChartBuilder::on(&root)
        .caption(title, ("sans-serif", 20))
        .margin(15)
        .margin_right(40)
        .x_label_area_size(50)
        .y_label_area_size(90)
        .build_cartesian_2d(
            0.0..TAIL,
            (micros(least) / 2.0..micros(most) * 2.0).log_scale(),
        )?;
    chart
        .configure_mesh()
        .x_labels(TICKS)
        .x_label_formatter(&|tail: &f64| percent(*tail))
        .y_label_formatter(&|micros: &f64| time(*micros))
        .x_desc("of all cycles take at most")
        .label_style(("sans-serif", 15))
        .light_line_style(TRANSPARENT)
        .draw()?;
    for (curve, number) in latencies.iter().zip(0..) {
        // The same colour for the same client.
        let colour = [BLUE, RED][number % 2];
        let style = match curve.is_hung {
            false => colour.stroke_width(2),
            true => colour.mix(0.45).stroke_width(5),
        };
        chart
            .draw_series(LineSeries::new(points(&curve.times), style))?
            .label(format!("{}, {}", curve.name, curve.state))
            .legend(move |(x, y)| PathElement::new([(x, y), (x + 25, y)], style));
    }
    chart
        .configure_series_labels()
        .position(SeriesLabelPosition::Coordinate(60, 110))
        .background_style(WHITE)
        .border_style(BLACK)
        .legend_area_size(35)
        .label_font(("sans-serif", 15))
        .draw()?;
    root.present()?;
    Ok(())
}

/// The points of a curve. At `x`, one cycle of `10^x` takes longer than the time.
fn points(times: &[Duration]) -> Vec<(f64, f64)> {
    let mut times = times.to_vec();
    times.sort_unstable();
    let mut points: Vec<(f64, f64)> = Vec::new();
    for (position, time) in times.iter().enumerate() {
        let tail = (times.len() as f64 / (times.len() - position) as f64).log10();
        let is_apart = points.last().is_none_or(|(last, _)| tail - last >= STEP);
        if is_apart && tail <= TAIL {
            points.push((tail, micros(*time)));
        }
    }
    points
}

fn percent(tail: f64) -> String {
    format!("{} %", 100.0 - 100.0 / 10_f64.powf(tail))
}

fn micros(time: Duration) -> f64 {
    time.as_secs_f64() * 1e6
}

fn time(micros: f64) -> String {
    match micros {
        micros if micros >= 1e6 => format!("{} s", micros / 1e6),
        micros if micros >= 1e3 => format!("{} ms", micros / 1e3),
        micros => format!("{micros} us"),
    }
}

/// The last tick: one cycle of `10^TAIL` takes longer.
const TAIL: f64 = 4.0;
const TICKS: usize = 5;
/// How far points are apart.
const STEP: f64 = 0.01;
const WIDTH: u32 = 1_000;
const HEIGHT: u32 = 560;
