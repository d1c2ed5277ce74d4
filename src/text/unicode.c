#include "text/unicode.h"
#include "base/err.h"
#include "base/utf8.h"
#include <string.h>
#include <utf8proc.h>

#define LU UTF8PROC_CATEGORY_LU
#define LL UTF8PROC_CATEGORY_LL
#define LM UTF8PROC_CATEGORY_LM
#define LO UTF8PROC_CATEGORY_LO
#define MN UTF8PROC_CATEGORY_MN
#define MC UTF8PROC_CATEGORY_MC
#define ND UTF8PROC_CATEGORY_ND
#define NO UTF8PROC_CATEGORY_NO
#define PD UTF8PROC_CATEGORY_PD
#define PO UTF8PROC_CATEGORY_PO
#define SM UTF8PROC_CATEGORY_SM
#define SO UTF8PROC_CATEGORY_SO
#define CF UTF8PROC_CATEGORY_CF

/* Found by asking Oniguruma 6.9.10 (Unicode 16) and PCRE2 10.42 (Unicode 14) for every category of every code point. */
static const mx_uc_range newer[] = {
    {0x0897, 0x0897, MN},   {0x0CF3, 0x0CF3, MC},   {0x0ECE, 0x0ECE, MN},   {0x1B4E, 0x1B4F, PO},
    {0x1B7F, 0x1B7F, PO},   {0x1C89, 0x1C89, LU},   {0x1C8A, 0x1C8A, LL},   {0x2427, 0x2429, SO},
    {0x2FFC, 0x2FFF, SO},   {0x31E4, 0x31E5, SO},   {0x31EF, 0x31EF, SO},   {0xA7CB, 0xA7CC, LU},
    {0xA7CD, 0xA7CD, LL},   {0xA7DA, 0xA7DA, LU},   {0xA7DB, 0xA7DB, LL},   {0xA7DC, 0xA7DC, LU},
    {0x105C0, 0x105F3, LO}, {0x10D40, 0x10D49, ND}, {0x10D4A, 0x10D4D, LO}, {0x10D4E, 0x10D4E, LM},
    {0x10D4F, 0x10D4F, LO}, {0x10D50, 0x10D65, LU}, {0x10D69, 0x10D6D, MN}, {0x10D6E, 0x10D6E, PD},
    {0x10D6F, 0x10D6F, LM}, {0x10D70, 0x10D85, LL}, {0x10D8E, 0x10D8F, SM}, {0x10EC2, 0x10EC4, LO},
    {0x10EFC, 0x10EFF, MN}, {0x1123F, 0x11240, LO}, {0x11241, 0x11241, MN}, {0x11380, 0x11389, LO},
    {0x1138B, 0x1138B, LO}, {0x1138E, 0x1138E, LO}, {0x11390, 0x113B5, LO}, {0x113B7, 0x113B7, LO},
    {0x113B8, 0x113BA, MC}, {0x113BB, 0x113C0, MN}, {0x113C2, 0x113C2, MC}, {0x113C5, 0x113C5, MC},
    {0x113C7, 0x113CA, MC}, {0x113CC, 0x113CD, MC}, {0x113CE, 0x113CE, MN}, {0x113CF, 0x113CF, MC},
    {0x113D0, 0x113D0, MN}, {0x113D1, 0x113D1, LO}, {0x113D2, 0x113D2, MN}, {0x113D3, 0x113D3, LO},
    {0x113D4, 0x113D5, PO}, {0x113D7, 0x113D8, PO}, {0x113E1, 0x113E2, MN}, {0x116D0, 0x116E3, ND},
    {0x1171E, 0x1171E, MC}, {0x11B00, 0x11B09, PO}, {0x11BC0, 0x11BE0, LO}, {0x11BE1, 0x11BE1, PO},
    {0x11BF0, 0x11BF9, ND}, {0x11F00, 0x11F01, MN}, {0x11F02, 0x11F02, LO}, {0x11F03, 0x11F03, MC},
    {0x11F04, 0x11F10, LO}, {0x11F12, 0x11F33, LO}, {0x11F34, 0x11F35, MC}, {0x11F36, 0x11F3A, MN},
    {0x11F3E, 0x11F3F, MC}, {0x11F40, 0x11F40, MN}, {0x11F41, 0x11F41, MC}, {0x11F42, 0x11F42, MN},
    {0x11F43, 0x11F4F, PO}, {0x11F50, 0x11F59, ND}, {0x11F5A, 0x11F5A, MN}, {0x1342F, 0x1342F, LO},
    {0x13439, 0x1343F, CF}, {0x13440, 0x13440, MN}, {0x13441, 0x13446, LO}, {0x13447, 0x13455, MN},
    {0x13460, 0x143FA, LO}, {0x16100, 0x1611D, LO}, {0x1611E, 0x16129, MN}, {0x1612A, 0x1612C, MC},
    {0x1612D, 0x1612F, MN}, {0x16130, 0x16139, ND}, {0x16D40, 0x16D42, LM}, {0x16D43, 0x16D6A, LO},
    {0x16D6B, 0x16D6C, LM}, {0x16D6D, 0x16D6F, PO}, {0x16D70, 0x16D79, ND}, {0x18CFF, 0x18CFF, LO},
    {0x1B132, 0x1B132, LO}, {0x1B155, 0x1B155, LO}, {0x1CC00, 0x1CCEF, SO}, {0x1CCF0, 0x1CCF9, ND},
    {0x1CD00, 0x1CEB3, SO}, {0x1D2C0, 0x1D2D3, NO}, {0x1DF25, 0x1DF2A, LL}, {0x1E030, 0x1E06D, LM},
    {0x1E08F, 0x1E08F, MN}, {0x1E4D0, 0x1E4EA, LO}, {0x1E4EB, 0x1E4EB, LM}, {0x1E4EC, 0x1E4EF, MN},
    {0x1E4F0, 0x1E4F9, ND}, {0x1E5D0, 0x1E5ED, LO}, {0x1E5EE, 0x1E5EF, MN}, {0x1E5F0, 0x1E5F0, LO},
    {0x1E5F1, 0x1E5FA, ND}, {0x1E5FF, 0x1E5FF, PO}, {0x1F6DC, 0x1F6DC, SO}, {0x1F774, 0x1F776, SO},
    {0x1F77B, 0x1F77F, SO}, {0x1F7D9, 0x1F7D9, SO}, {0x1F8B2, 0x1F8BB, SO}, {0x1F8C0, 0x1F8C1, SO},
    {0x1FA75, 0x1FA77, SO}, {0x1FA87, 0x1FA89, SO}, {0x1FA8F, 0x1FA8F, SO}, {0x1FAAD, 0x1FAAF, SO},
    {0x1FABB, 0x1FABF, SO}, {0x1FAC6, 0x1FAC6, SO}, {0x1FACE, 0x1FACF, SO}, {0x1FADA, 0x1FADC, SO},
    {0x1FADF, 0x1FADF, SO}, {0x1FAE8, 0x1FAE9, SO}, {0x1FAF7, 0x1FAF8, SO}, {0x1FBCB, 0x1FBEF, SO},
    {0x2B739, 0x2B739, LO}, {0x2EBF0, 0x2EE5D, LO}, {0x31350, 0x323AF, LO},
};

const mx_uc_range *mx_uc_newer(size_t *n) {
    *n = countof(newer);
    return newer;
}

const char *mx_uc_category_name(int category) {
    static const char names[][3] = {"Cn", "Lu", "Ll", "Lt", "Lm", "Lo", "Mn", "Mc", "Me", "Nd",
                                    "Nl", "No", "Pc", "Pd", "Ps", "Pe", "Pi", "Pf", "Po", "Sm",
                                    "Sc", "Sk", "So", "Zs", "Zl", "Zp", "Cc", "Cf", "Cs", "Co"};
    return names[category];
}

int mx_uc_category(uint32_t cp) {
    if (cp >= newer[0].first) {
        size_t lo = 0, hi = countof(newer);
        while (lo < hi) {
            size_t mid = (lo + hi) / 2;
            if (newer[mid].last < cp)
                lo = mid + 1;
            else
                hi = mid;
        }
        if (lo < countof(newer) && newer[lo].first <= cp) return newer[lo].category;
    }
    return (int)utf8proc_category((utf8proc_int32_t)cp);
}

bool mx_uc_space(uint32_t cp) {
    if (cp < 0x80) return cp == ' ' || (cp >= 9 && cp <= 13);
    return cp == 0x85 || cp == 0xA0 || cp == 0x1680 || (cp >= 0x2000 && cp <= 0x200A) || cp == 0x2028 ||
           cp == 0x2029 || cp == 0x202F || cp == 0x205F || cp == 0x3000;
}

/* Other_Alphabetic that no category of \w holds: circled and squared letters, which are symbols. */
static bool symbol_letter(uint32_t cp) {
    return (cp >= 0x24B6 && cp <= 0x24E9) || (cp >= 0x1F130 && cp <= 0x1F149) ||
           (cp >= 0x1F150 && cp <= 0x1F169) || (cp >= 0x1F170 && cp <= 0x1F189);
}

bool mx_uc_word(uint32_t cp) {
    if (cp < 0x80) {
        return (cp >= '0' && cp <= '9') || (cp >= 'A' && cp <= 'Z') || cp == '_' || (cp >= 'a' && cp <= 'z');
    }
    if (cp == 0x200C || cp == 0x200D) return true;
    switch (mx_uc_category(cp)) {
    case UTF8PROC_CATEGORY_LU:
    case UTF8PROC_CATEGORY_LL:
    case UTF8PROC_CATEGORY_LT:
    case UTF8PROC_CATEGORY_LM:
    case UTF8PROC_CATEGORY_LO:
    case UTF8PROC_CATEGORY_MN:
    case UTF8PROC_CATEGORY_MC:
    case UTF8PROC_CATEGORY_ME:
    case UTF8PROC_CATEGORY_ND:
    case UTF8PROC_CATEGORY_NL:
    case UTF8PROC_CATEGORY_PC: return true;
    default: return symbol_letter(cp);
    }
}

bool mx_uc_numeric(uint32_t cp) {
    if (cp < 0x80) return cp >= '0' && cp <= '9';
    int c = mx_uc_category(cp);
    return c == UTF8PROC_CATEGORY_ND || c == UTF8PROC_CATEGORY_NL || c == UTF8PROC_CATEGORY_NO;
}

bool mx_uc_punct(uint32_t cp) {
    if (cp < 0x80) {
        return (cp >= '!' && cp <= '/') || (cp >= ':' && cp <= '@') || (cp >= '[' && cp <= '`') ||
               (cp >= '{' && cp <= '~');
    }
    int c = mx_uc_category(cp);
    return c >= UTF8PROC_CATEGORY_PC && c <= UTF8PROC_CATEGORY_PO;
}

bool mx_uc_mark(uint32_t cp) {
    if (cp < 0x300) return false;
    int c = mx_uc_category(cp);
    return c >= UTF8PROC_CATEGORY_MN && c <= UTF8PROC_CATEGORY_ME;
}

bool mx_uc_other(uint32_t cp) {
    int c = mx_uc_category(cp);
    return c == UTF8PROC_CATEGORY_CN || (c >= UTF8PROC_CATEGORY_CC && c <= UTF8PROC_CATEGORY_CO);
}

/* Capitals that utf8proc 2.8 does not know yet. */
static uint32_t newer_lower(uint32_t cp) {
    if ((cp >= 0x10D50 && cp <= 0x10D65)) return cp + 0x20;
    if ((cp >= 0x16EA0 && cp <= 0x16EB8)) return cp + 0x1B;
    switch (cp) {
    case 0x1C89:
    case 0xA7CC:
    case 0xA7CE:
    case 0xA7D2:
    case 0xA7D4:
    case 0xA7DA: return cp + 1;
    case 0xA7CB: return 0x264;
    case 0xA7DC: return 0x19B;
    default: return cp;
    }
}

size_t mx_uc_lower(uint32_t cp, uint32_t out[2]) {
    if (cp == 0x130) { // the only character whose lower case is two: i and a dot above
        out[0] = 'i';
        out[1] = 0x307;
        return 2;
    }
    uint32_t low = cp >= 0x1C89 ? newer_lower(cp) : cp;
    out[0] = low != cp ? low : (uint32_t)utf8proc_tolower((utf8proc_int32_t)cp);
    return 1;
}

/* The bytes that are visible in Latin-1 stand for themselves, the other 68 for U+0100 and up, in order. */
static bool visible(uint32_t b) {
    return (b >= '!' && b <= '~') || (b >= 0xA1 && b <= 0xAC) || (b >= 0xAE && b <= 0xFF);
}

uint32_t mx_bl_char(uint8_t byte) {
    if (visible(byte)) return byte;
    if (byte <= 32) return 0x100u + byte;
    if (byte == 0xAD) return 0x143;
    return 0x121u + byte - 0x7F; // 0x7F to 0xA0
}

int mx_bl_byte(uint32_t cp) {
    if (cp < 0x100) return visible(cp) ? (int)cp : -1;
    if (cp <= 0x120) return (int)cp - 0x100;
    if (cp <= 0x142) return (int)cp - 0x121 + 0x7F;
    return cp == 0x143 ? 0xAD : -1;
}

void mx_bl_encode(mx_str *out, const char *p, size_t len) {
    if (!mx_str_reserve(out, 2 * len)) return;
    char *o = out->p + out->len;
    for (size_t i = 0; i < len; i++) {
        uint8_t b = (uint8_t)p[i];
        if (b > ' ' && b < 0x7F)
            *o++ = (char)b;
        else
            o += mx_utf8_encode(mx_bl_char(b), o);
    }
    *o = 0;
    out->len = (size_t)(o - out->p);
}

void mx_utf8_repair(mx_str *out, const char *p, size_t len) {
    while (len) {
        size_t good = mx_utf8_valid(p, len), bad;
        mx_str_add(out, p, good);
        p += good, len -= good;
        if (!len) break;
        mx_utf8_decode(p, len, &bad);
        mx_str_add(out, "\xEF\xBF\xBD", 3);
        p += bad, len -= bad;
    }
}
