from supple.cli.common import Json, print_json


def doctor(json: Json = False) -> None:
    """Versions, cores, arithmetic, compilers, optional parts, and where data would be found."""
    from supple.doctor import examine
    from supple.text import table

    findings = examine()
    if json:
        print_json({"checks": [vars(finding) for finding in findings]})
        return
    rows = [({True: "ok", False: "-"}[f.ok], f.what, f.found, f.cure) for f in findings]
    print(table(("", "what", "found", "to get it"), rows, left=(0, 1, 2, 3)))
