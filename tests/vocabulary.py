"""The words that are no names here, and the phrases that have plainer ones: one list of each, which the lint holds."""

VAGUE_NAMES = (
    "asked",
    "at",
    "far",
    "found",
    "given",
    "gone",
    "got",
    "held",
    "item",
    "known",
    "left",
    "lost",
    "made",
    "met",
    "mine",
    "near",
    "seen",
    "some",
    "spill",
    "taken",
    "theirs",
    "told",
    "used",
    "wanted",
    "worn",
)
"""Names that do not say what they stand for. None outlives three lines, and none is of a function, class or field."""
BRIEF_NAMES = ("at", "item", "left")
"""Those of `VAGUE_NAMES` that a variable of the packages may have for three lines; `left` longer, beside `right`."""
IDIOMS = {
    "'per'": r"\b(?:runs?|bits?|bytes|lines?|edges?|nodes|distances|queries|candidates|(?:milli)?seconds|[num]s|"
    r"calls?|one|two|requests?|looks?|pieces? of work) an? "
    r"(?:partition|row|core|node|shard|table|quer\w+|index|column|fault|stage|dimension|vector(?! database)|value|"
    r"file|hash|machine|process|snapshot|second)\b",
    "'depend on'": r"\bh[au]ngs? on\b",
    "the name of the field of the result": r"\b(?:says?|said) so\b",
    "'the rest', and what it is": r"\b[Ww]hat is neither\b|\bof them copying\b",
    "'is reported', or the command that shows it": r"\btold\b(?! apart)|\btells? of\b",
    "'requested', 'queried', 'searched for'": r"\basked\b",
    "'release', 'expire' or 'remove'": r"\blet(?:s|ting)? go of\b",
    "'distributed over'": r"\bdealt (?:out|with)\b",
    "'with many tombstones'": r"\bworn\b",
    "'parameter'": r"\bknobs?\b",
    "'sensor evaluation'": r"\b(?:each|one|next|first|longest|a|the|sensor(?:'s)?) looks?\b(?!-| up)|"
    r"\blooks (?:at|of|in)\b",
    "'leftover'": r"\bleavings\b",
    "'half as long again', as a factor": r"\b(?:half|as much) again\b",
    "'ignores'": r"\bpass(?:es|ed)? (?:it )?over it\b",
    "whose it is": r"\b(?:theirs|mine|is its alone|that one's)\b",
}
"""Phrases that a reader meets for the first time here, by what is meant"""
