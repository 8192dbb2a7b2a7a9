//! Answers to requests of one call that are written in several pieces.

use everbeat_store::{Error, Result};

/// The answers so far, by the places of their requests.
pub(crate) struct Answers<T> {
    given: Vec<Option<Result<T>>>,
}

impl<T> Answers<T> {
    pub(crate) fn to(requests: usize) -> Answers<T> {
        Answers { given: (0..requests).map(|_| None).collect() }
    }

    pub(crate) fn give(&mut self, places: &[usize], answers: Vec<Result<T>>) {
        for (place, answer) in places.iter().zip(answers) {
            self.given[*place] = Some(answer);
        }
    }

    /// Every request has its answer.
    pub(crate) fn all(self) -> Result<Vec<Result<T>>> {
        self.told(Error::Bug("a request was not answered".to_string()))
    }

    /// Tells whoever has no answer yet what went wrong. Without any answer the call as a whole went wrong.
    pub(crate) fn told(self, error: Error) -> Result<Vec<Result<T>>> {
        if !self.given.is_empty() && self.given.iter().all(Option::is_none) {
            return Err(error);
        }
        Ok(self.given.into_iter().map(|answer| answer.unwrap_or_else(|| Err(error.clone()))).collect())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_failure_reaches_those_without_an_answer_and_all_if_there_is_none() {
        let broken = || Error::Bug("broken".to_string());
        let mut answers = Answers::to(3);
        answers.give(&[2, 0], vec![Ok(2), Ok(0)]);
        assert_eq!(answers.told(broken()), Ok(vec![Ok(0), Err(broken()), Ok(2)]));
        assert_eq!(Answers::<u8>::to(2).told(broken()), Err(broken()));
        assert_eq!(Answers::<u8>::to(0).all(), Ok(vec![]));
    }
}
