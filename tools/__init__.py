"""What helps to build and to judge the project; none of it is part of the package."""
