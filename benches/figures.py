"""Prints a figure with what it should be, and whether it is."""


def figure(name, value, most, unit=""):
    label = "shown " if value <= most else "MISSED"
    print(f"{label}  {name}: {value:.1f}{unit}, at most {most:g}{unit}")
