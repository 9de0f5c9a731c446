//! What an experiment of a paper is: points, what came of each, and what the paper found beside what is found here.

use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};

use serde::Serialize;

/// A point of a figure: something that is measured.
pub trait Point: Clone + Send + Sync + Serialize + 'static {
    /// What comes of it.
    type Measured: Measured;

    /// What of the figure, such as its level.
    fn panel(&self) -> String;

    /// Line of the figure.
    fn series(&self) -> String;

    /// Measures it. The same each time.
    fn measure(&self) -> Self::Measured;
}

/// A figure that is drawn: what, of which unit, and where it comes from. NaN where a point has none.
pub type View<M> = (&'static str, &'static str, fn(&M) -> f64);

/// What comes of a point.
pub trait Measured: Copy + Send + Serialize + 'static {
    /// What its cells are.
    const HEADS: &'static [&'static str];
    /// What is worth drawing.
    const VIEWS: &'static [View<Self>];

    /// For a table; empty where a point has no such figure.
    fn cells(&self) -> Vec<String>;
}

/// Points that a paper shows together.
pub struct Experiment<P: Point> {
    /// Short, for choosing it.
    pub name: &'static str,
    /// Numbers in the paper.
    pub figures: &'static str,
    /// What is shown.
    pub title: &'static str,
    /// What the places on a line are.
    pub places: &'static str,
    /// Each with its place on its line.
    pub points: fn() -> Vec<(String, P)>,
    /// What the paper found.
    pub claims: &'static [Claim<P>],
}

/// A point, its place in its figure, and what came of it.
#[derive(Clone, Debug, Serialize)]
pub struct Row<P: Point> {
    /// Name of the experiment.
    pub experiment: &'static str,
    /// What of the figure.
    pub panel: String,
    /// Line of the figure.
    pub series: String,
    /// Place on the line.
    pub x: String,
    /// The point.
    pub point: P,
    /// What came of it.
    pub measured: P::Measured,
}

/// A finding of the paper.
pub struct Claim<P: Point> {
    /// The paper's, in its words and numbers.
    pub paper: &'static str,
    /// None: the rows for it are not there.
    pub(super) here: fn(&Found<'_, P>) -> Option<Here>,
}

/// The same here.
pub struct Here {
    /// In words and numbers.
    pub words: String,
    /// Whether it is so here, too.
    pub verdict: Verdict,
}

/// Whether what the paper found is so here, too.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Verdict {
    /// It is, or better.
    Same,
    /// The engine reaches what the drives bear, and what is slower in the paper, where processors take time, is faster here.
    DrivesLimit,
    /// What the paper's drives do there is not in the model of the drives.
    NotModelled,
    /// It is not.
    Not,
}

impl Verdict {
    pub(super) fn of(is_same: bool) -> Self {
        if is_same { Verdict::Same } else { Verdict::Not }
    }

    /// For the beginning of a line.
    pub fn words(self) -> &'static str {
        match self {
            Verdict::Same => "as in the paper",
            Verdict::DrivesLimit => "the drives' limit",
            Verdict::NotModelled => "not in the model of the drives",
            Verdict::Not => "NOT AS IN THE PAPER",
        }
    }
}

impl<P: Point> Claim<P> {
    /// What the rows of an experiment say; none: the rows for it are not there.
    pub fn here(&self, rows: &[Row<P>]) -> Option<Here> {
        (self.here)(&Found(rows))
    }
}

/// The rows of an experiment.
pub(super) struct Found<'a, P: Point>(&'a [Row<P>]);

impl<P: Point> Found<'_, P> {
    pub(super) fn rows(&self) -> &[Row<P>] {
        self.0
    }

    pub(super) fn line<'a>(&'a self, panel: &'a str, series: &'a str) -> impl Iterator<Item = &'a Row<P>> {
        self.0.iter().filter(move |row| row.panel == panel && row.series == series)
    }

    pub(super) fn at(&self, panel: &str, series: &str, x: &str) -> Option<&P::Measured> {
        let is_it = |row: &&Row<P>| row.panel == panel && row.series == series && row.x == x;
        self.0.iter().find(is_it).map(|row| &row.measured)
    }
}

impl<P: Point> Experiment<P> {
    /// Runs all its points on some threads, in no order. The rows are in the order of the figure.
    pub fn run(&self, threads: usize) -> Vec<Row<P>> {
        self.measure(&(self.points)(), threads)
    }

    /// Runs some points as [`Self::run`] does.
    pub fn measure(&self, points: &[(String, P)], threads: usize) -> Vec<Row<P>> {
        on_threads(threads, points, |(x, point)| self.row(x, point))
    }

    pub(super) fn row(&self, x: &str, point: &P) -> Row<P> {
        Row {
            experiment: self.name,
            panel: point.panel(),
            series: point.series(),
            x: x.to_owned(),
            point: point.clone(),
            measured: point.measure(),
        }
    }
}

/// What comes of each point, in their order. They are run on some threads, in no order.
pub fn on_threads<P: Sync, R: Send>(threads: usize, points: &[P], run: impl Fn(&P) -> R + Sync) -> Vec<R> {
    let (next, rows) = (AtomicUsize::new(0), Mutex::new(Vec::new()));
    std::thread::scope(|scope| {
        for _ in 0..threads.clamp(1, points.len().max(1)) {
            scope.spawn(|| {
                while let number = next.fetch_add(1, Relaxed)
                    && let Some(point) = points.get(number)
                {
                    let row = run(point);
                    rows.lock().expect("no thread panics").push((number, row));
                }
            });
        }
    });
    let mut rows = rows.into_inner().expect("no thread panics");
    rows.sort_unstable_by_key(|(number, _)| *number);
    rows.into_iter().map(|(_, row)| row).collect()
}

/// Rows as a table of text, with its heading. Columns in which no row has anything are left out.
pub fn table<P: Point>(rows: &[Row<P>]) -> String {
    let mut lines: Vec<Vec<String>> = vec![
        ["", "", "at"].into_iter().chain(P::Measured::HEADS.iter().copied()).map(str::to_owned).collect(),
    ];
    for row in rows {
        let own = [row.panel.clone(), row.series.clone(), row.x.clone()];
        lines.push(own.into_iter().chain(row.measured.cells()).collect());
    }
    let width = |column: usize| {
        let longest = |lines: &[Vec<String>]| lines.iter().map(|line| line[column].chars().count()).max();
        match longest(&lines[1..]) {
            None | Some(0) => 0,
            Some(longest) => longest.max(lines[0][column].chars().count()) + 2,
        }
    };
    let widths: Vec<usize> = (0..lines[0].len()).map(width).collect();
    let mut text = String::new();
    for line in &lines {
        for (column, (cell, width)) in
            line.iter().zip(&widths).enumerate().filter(|(_, (_, width))| **width > 0)
        {
            // Names to the left, figures to the right.
            text += &if column < 2 { format!("{cell:<width$}") } else { format!("{cell:>width$}") };
        }
        text.truncate(text.trim_end_matches(' ').len());
        text.push('\n');
    }
    text
}
