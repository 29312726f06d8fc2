"""The system under fire: real traffic, real duties, and a seeded schedule of everything that goes wrong in a night."""
