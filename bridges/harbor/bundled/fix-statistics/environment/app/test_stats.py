import unittest

import stats


class TestStats(unittest.TestCase):
    def test_median(self):
        self.assertEqual(stats.median([3, 1, 2]), 2)
        self.assertEqual(stats.median([4, 1, 2, 3]), 2.5)

    def test_mode(self):
        self.assertEqual(stats.mode([1, 2, 2, 3]), 2)

    def test_spread(self):
        self.assertAlmostEqual(stats.spread([1, 2, 3, 4]), 5 / 3)

    def test_moving_mean(self):
        self.assertEqual(stats.moving_mean([1, 2, 3, 4], 2), [1.5, 2.5, 3.5])
