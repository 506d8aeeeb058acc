"""The characters of words: letters, numbers and marks of Unicode 14, those of Chinese, Japanese and Korean apart.

The table is data, so that it is the same under each Python: texts are cut alike wherever they are indexed and searched.
"""

import base64
import zlib
from functools import cache

import numpy as np

from icepuffin.ann_kernels.arrays import U8, read_only

NO_WORD, WORD, CJK = range(3)
"""Kinds of characters. A run of the second kind is a word; of the third each pair of neighbours is one"""
CODE_POINTS = 0x110000
_RUNS = (
    "c-mD}T}T{P6z1GH*W58P;Z8DBW?&X(+TC_9?2=tjP;kM86$~^G3!z<bL7_ef@j<8%AGWN)1t|u!Rk{|11|r0g4GLKrOG7Org+L4y63CYLAZWo-"
    "p?PaU13j}QrQz=0|9gJEbIvzgp!`vH^he;nj@;1E#1fWq?Uc-RIX*{Tc%q>$EaWbyGmZne&9IKx;J5^WyQ>g1fcAB2JQ$PKXK8zl$t4X#q42!m"
    "y+<GxwXP;eF1Xl){&AVMhtZ3#F|1;Ahi>Ykh%wS{i3H89fJ+@6krkdG6NHJLJiZZW(P_`2wP|pl?DF#|6BA_H@wr11O*94Xv4o1pX#PfebQVcB"
    "eN!IaizRjR3==K#n>;Xd!!)weiFU{{-qqRB*}@|)BKZ~}L~;em4Pt0v*g8{@)Z<fEr*{hV)~jux&aw02JbE-cXAF~(T*M46JyI6BO6VPjVCPUR"
    "L!{opVd_i5q23cpSQX%dx;sEiYEt1m$N@Y@L!9r!8gn<9SR&+YF6w}dcG67<Qojn+RpGyN4iBQmRVK{%fRXQQGT|8;XG9;4+I426{bIbB8puRO"
    ">zN%!2I@k&s$gQ;Jz#zv>?M{gV^(I9*FZR_4UnU5dI84eE5Henc2x%t%J-nb3{^;EcC^eM1j@J%B0-OZ*=yno*iA{nq>S-Ic<d3D#S>@+-"
    "NYCL-jkg+%^qsH@a(kP`4Fm5;FL6qt~l=T8w=CIvK`6s5T3sC9PY5<(=(In?=7Bi6LJ0qk3H~t&oBl5?KTCJ=8sRApXMlLj{J>@c5w>-"
    "V0hXl1Ya=2N>0HR<SU>qhnS;b8FH2OE03VUuFUa9e3os3Xb5Bc0!3HhwzdEXv7(77X15|Z6eYRgC3hf0kSTZA;7BmcLuSILvaYmS#$AYa6S^g1"
    "l?|C9FPx-Dka#Uy$%t<EC@MGQe!0ssC3zp_X4nrW#dlf_Vj0KIVkbJUi)}-"
    "jhWg3=DJGimEo5cBH(y~6uHc8QicTFcqa|9HvyjD6Dl;8(qI(98v`hms2T;)OX?zAJC{jJ+lG19DV6Z32Tp6Ns171*Zy0oC*H3-"
    "P3H0D}m^m?3SyL!Bs42L{i157Nis8~0E>WGVyC{r+k#1@cRyGj{TV|$dp;sKr8QRPesQ>wu-1*HNZPD-b@3CW@uvquMGTWpm*gKg;827i-"
    "ssiv1B6;z;i7@4vNmx?!F{6Z<d!ct`Sa|(CIh_77ACnc?5o_Hy~$fQMRaXFAWhl}9yY1S$SvR(N{U@O=9KQo|;m?5fqJ4Qw7+{8MwN!aBjMzp4"
    "Cyh-Ui=*>Wt3M8d!Z~(q~3S%NCvof~Nk6=ODW|@%qAtZT|6vRYE)mTW37wuen1pyD%=yCrlTPDUJ(oFPB5Zp!VzRn^WHo%A?n+TNa(YQzsqen{"
    "g(mv-s7jMF$U(@bth55GikE&YF-"
    "SFP$E2sCbvIEO6qjK*u>L#f^DaEV|ksDsL&u=-q?7CKGlFaR^Fv^>h-nI7=1kLwvKw|l8X0_bEs^12)U<Dh-Tz_4&JB@^|41M}5AmdAa6C-*-"
    "C}NkbU(x&%2iCQbWqiVLg+*K(@ik@%+89<D@k~gQal)DM)QI6uyBNU{`l7u34=E8Uau?(Sf~AXp;$Uv;-SYH_81{))JRY|-"
    "z@SQze7e0{IE2~<5#>?_<6@i0Uxy7Q)id`fB3Wyl5tzA|HVen1j}T>{qPsl$WXWUNFkkP#Y0)b3+-"
    "luZ*hkFcVBg&7&e@MuEx7W1dj)=<0{>;3_~JHn{c;HZ484>yXK#H2kB@G_&nLG2I{Pnk!BRc"
)
"""Base 85 of a zlib stream of varints, of each run of characters of one kind in order: 4 times its length, plus the
kind. Made of `unicodedata` 14.0.0: categories L, N and M; Kana, Han and Hangul by their blocks
"""


@cache
def kinds_of_characters() -> U8:
    """u8[0x110000]: the kind of each code point."""
    data = np.frombuffer(zlib.decompress(base64.b85decode(_RUNS)), np.uint8).astype(np.int64)
    ends = np.flatnonzero(data < 128)
    starts = np.append(0, ends[:-1] + 1)
    shifts = 7 * (np.arange(len(data)) - np.repeat(starts, np.diff(np.append(starts, len(data)))))
    runs = np.add.reduceat((data & 127) << shifts, starts)
    return read_only(np.repeat((runs & 3).astype(np.uint8), runs >> 2))
