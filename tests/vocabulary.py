"""The words that are no names here, and the phrases that have plainer ones: one list of each, which the lint holds."""

import re

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
    "said",
    "says",
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
SPEAKING_WITH_ANOTHER = frozenset({"at", "far", "held", "left", "lost", "near", "taken", "used"})
"""Vague names that may be a part of a name: `rows_at`, `held_out`, `left_side`, `used_bytes`."""
BRIEF_NAMES = ("at", "item", "left")
"""Vague names that a variable of the packages may have for three lines; `left` longer, beside `right`."""
ACTIVITIES = (
    "carving",
    "fetching",
    "hashing",
    "matching",
    "opening",
    "postprocessing",
    "prefetching",
    "pruning",
    "roaring",
    "routing",
    "tuning",
)
"""Nouns in -ing that modules are named by, as the field has them: Roaring is a bitmap"""
IDIOMS = {
    "'per'": r"(?:runs?|bits?|bytes|lines?|edges?|nodes|distances|queries|candidates|(?:milli)?seconds|[num]s|"
    r"calls?|one|two|objects?|byte|rows?|tasks?|requests?|looks?|pieces? of work) an? "
    r"(?:partition|row|core|node|shard|table|quer\w+|index|column|fault|stage|dimension|vector(?! database)|value|"
    r"file|hash|machine|process|snapshot|second)\b",
    "'depend on'": r"h[au]ngs? on\b",
    "the name of the field of the result": r"(?:says?|said) so\b",
    "'the rest', and what it is": r"[Ww]hat is neither\b|of them copying\b",
    "'is reported', or the command that shows it": r"told\b(?! apart)|tells? of\b|called so\b|"
    r"(?:is|are|was|were) said\b(?! to)",
    "'requested', 'queried', 'searched for'": r"asked\b",
    "'calls', 'reads', 'requests'": r"asks?\b(?! for at least)",
    "'release', 'expire' or 'remove'": r"let(?:s|ting)? go\b",
    "'distributed over'": r"dealt (?:out|with)\b",
    "'with many tombstones'": r"worn\b",
    "'parameter'": r"knobs?\b",
    "'sensor evaluation'": r"(?:each|one|next|first|longest|a|the|sensor(?:'s)?) looks?\b(?!-| up)|"
    r"looks\b(?! (?:for|like|up|them up)\b)",
    "'leftover'": r"leavings\b",
    "'half as long again', as a factor": r"(?:half|as much) again\b",
    "'ignores', 'skips' or 'leaves out'": r"pass(?:es|ed|ing)? (?:it )?over\b",
    "'recognised', 'identified'": r"known (?:again|by)\b",
    "'trusted'": r"believ(?:e|ed|es)\b",
    "'passes'": r"is content\b",
    "'is dropped', 'ends'": r"is no more\b",
    "what is counted, in place of 'of them'": r"\d[\d,.]*\)?(?: [\w%]+){0,3} of them\b|"
    r"(?=[A-Za-z]\w*\)? of them\b)"
    r"(?!(?i:one|none|all|each|any|most|many|some|few|half|both|two|several|first|tuple)\b)",
    "the name of the package": r"[Rr]ooms\b|(?:kernels|ops|index|theta|catalog|search|storage|puffin) room\b",
    "the subject first": r"^test of\b",
    "whose it is": r"(?:theirs|mine|is its alone|that one's)\b",
}
"""Phrases that a reader meets for the first time here, by what is meant; each begins where a word begins"""
_BY_MEANING = {plain: re.compile(rf"\b(?:{idiom})") for plain, idiom in IDIOMS.items()}
_ANY = re.compile(rf"\b(?:{'|'.join(IDIOMS.values())})")


def plainer(text: str) -> list[str]:
    """What to write in place of the idioms of a text."""
    return [plain for plain, idiom in _BY_MEANING.items() if idiom.search(text)] if _ANY.search(text) else []
