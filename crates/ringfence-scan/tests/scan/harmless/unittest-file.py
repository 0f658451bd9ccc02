import unittest

class Sums(unittest.TestCase):
    def test_adds(self):
        self.assertEqual(1 + 1, 2)

    def test_system(self):
        self.assertIn("system", ["system", "exec"])

if __name__ == "__main__":
    unittest.main()
