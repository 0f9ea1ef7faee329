"""Messages between members who reach each other: everybody serves its own, everybody fetches the others'."""
