//! Places that are used again, with names that are not.

/// Values, each under a name of its own.
#[derive(Debug)]
pub(crate) struct Slab<T> {
    places: Vec<(u32, Option<T>)>,
    free: Vec<usize>,
}

/// The name of a value: nothing is under it once that value is gone.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Name {
    place: usize,
    generation: u32,
}

impl<T> Slab<T> {
    pub(crate) const fn new() -> Self {
        Self {
            places: Vec::new(),
            free: Vec::new(),
        }
    }

    pub(crate) fn insert(&mut self, value: T) -> Name {
        let place = self.free.pop().unwrap_or_else(|| {
            self.places.push((0, None));
            self.places.len() - 1
        });
        let (generation, content) = &mut self.places[place];
        *content = Some(value);
        Name {
            place,
            generation: *generation,
        }
    }

    pub(crate) fn get_mut(&mut self, name: Name) -> Option<&mut T> {
        match self.places.get_mut(name.place) {
            Some((generation, content)) if *generation == name.generation => content.as_mut(),
            _ => None,
        }
    }

    pub(crate) fn remove(&mut self, name: Name) {
        if self.get_mut(name).is_some() {
            let (generation, content) = &mut self.places[name.place];
            *generation += 1;
            *content = None;
            self.free.push(name.place);
        }
    }
}
