//! Room for so many things, without an allocator.

/// Up to `N` things, each in the place that it was given until it is taken out.
///
/// Nobody looks further than things have ever stood: with the few that most tests have, it costs little
/// to go through them, also in a debug build and under Miri.
#[derive(Debug, Clone)]
pub(super) struct Slots<T, const N: usize> {
    places: [Option<T>; N],
    used: usize,
}

impl<T, const N: usize> Slots<T, N> {
    pub(super) const fn new() -> Self {
        Self {
            places: [const { None }; N],
            used: 0,
        }
    }

    /// Puts `thing` into the first free place, and says which; none when there is no room.
    pub(super) fn insert(&mut self, thing: T) -> Option<usize> {
        let free = self.places.iter().position(Option::is_none)?;
        *self.places.get_mut(free)? = Some(thing);
        self.used = self.used.max(free + 1);
        Some(free)
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = &T> {
        self.places.iter().take(self.used).flatten()
    }

    pub(super) fn iter_mut(&mut self) -> impl Iterator<Item = &mut T> {
        self.places.iter_mut().take(self.used).flatten()
    }

    pub(super) fn get_mut(&mut self, place: usize) -> Option<&mut T> {
        self.places.get_mut(place)?.as_mut()
    }

    pub(super) fn take(&mut self, place: usize) -> Option<T> {
        self.places.get_mut(place)?.take()
    }

    pub(super) fn take_all(&mut self) -> impl Iterator<Item = T> {
        let used = self.places.iter_mut().take(self.used);
        used.filter_map(Option::take)
    }

    /// Takes out what `keep` says no to.
    pub(super) fn retain(&mut self, keep: impl Fn(&T) -> bool) {
        for place in self.places.iter_mut().take(self.used) {
            place.take_if(|thing| !keep(thing));
        }
    }
}
