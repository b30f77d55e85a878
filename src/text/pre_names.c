/* What the names in GGUF's "tokenizer.ggml.pre" stand for: the pre-tokenizers of the models that introduced them, as
 * published in their tokenizer.json (or tiktoken) files. Several patterns split one after the other. */
#include <string.h>

#include "text/tokenizer_int.h"

#define SUFFIXES "(?i:'s|'t|'re|'ve|'m|'ll|'d)"
#define SPACES   "\\s*[\\r\\n]+|\\s+(?!\\S)|\\s+"
#define WORDS    "[^\\r\\n\\p{L}\\p{N}]?\\p{L}+"
#define SIGNS    " ?[^\\s\\p{L}\\p{N}]+[\\r\\n]*"

#define GPT2   "'s|'t|'re|'ve|'m|'ll|'d| ?\\p{L}+| ?\\p{N}+| ?[^\\s\\p{L}\\p{N}]+|\\s+(?!\\S)|\\s+"
#define CL100K SUFFIXES "|" WORDS "|\\p{N}{1,3}|" SIGNS "|" SPACES
#define QWEN2  SUFFIXES "|" WORDS "|\\p{N}|" SIGNS "|" SPACES
#define QWEN35 SUFFIXES "|[^\\r\\n\\p{L}\\p{N}]?[\\p{L}\\p{M}]+|\\p{N}| ?[^\\s\\p{L}\\p{M}\\p{N}]+[\\r\\n]*|" SPACES

/* Words by case: an upper-case run and a lower-case run, with letters that are neither in both. */
#define UPPER "\\p{Lu}\\p{Lt}\\p{Lm}\\p{Lo}\\p{M}"
#define LOWER "\\p{Ll}\\p{Lm}\\p{Lo}\\p{M}"
#define CASED(but, end)                                                                                              \
    "[^\\r\\n\\p{L}\\p{N}]?[" UPPER but "]*[" LOWER but "]+" end "|[^\\r\\n\\p{L}\\p{N}]?[" UPPER but                \
    "]+[" LOWER but "]*" end
#define SIGNS_SLASH " ?[^\\s\\p{L}\\p{N}]+[\\r\\n/]*"
#define O200K       CASED("", SUFFIXES "?") "|\\p{N}{1,3}|" SIGNS_SLASH "|" SPACES
#define TEKKEN      CASED("", "") "|\\p{N}|" SIGNS_SLASH "|" SPACES
#define KIMI        "[\\p{Han}]+|" CASED("&&[^\\p{Han}]", SUFFIXES "?") "|\\p{N}{1,3}|" SIGNS "|" SPACES

#define CJK_KANA "[\\x{4e00}-\\x{9fa5}\\x{3040}-\\x{309f}\\x{30a0}-\\x{30ff}]+"
#define DEEPSEEK3                                                                                                    \
    "[!\"#$%&'()*+,\\-./:;<=>?@\\[\\\\\\]^_`{|}~][A-Za-z]+|[^\\r\\n\\p{L}\\p{P}\\p{S}]?[\\p{L}\\p{M}]+|"             \
    " ?[\\p{P}\\p{S}]+[\\r\\n]*|" SPACES
#define CJK_HANGUL "[\\x{4e00}-\\x{9fa5}\\x{800}-\\x{4e00}\\x{ac00}-\\x{d7ff}]+"
/* Cased letters, as DeepSeek LLM lists them. */
#define CASED_LETTERS                                                                                                \
    "\\x{41}-\\x{5a}\\x{61}-\\x{7a}\\x{b5}\\x{c0}-\\x{d6}\\x{d8}-\\x{f6}\\x{f8}-\\x{1ba}\\x{1bc}-\\x{1bf}"           \
    "\\x{1c4}-\\x{293}\\x{295}-\\x{2af}\\x{370}-\\x{373}\\x{376}\\x{377}\\x{37b}-\\x{37d}\\x{37f}\\x{386}"           \
    "\\x{388}-\\x{38a}\\x{38c}\\x{38e}-\\x{3a1}\\x{3a3}-\\x{3f5}\\x{3f7}-\\x{481}\\x{48a}-\\x{52f}"                  \
    "\\x{531}-\\x{556}\\x{10a0}-\\x{10c5}\\x{13a0}-\\x{13f5}\\x{13f8}-\\x{13fd}\\x{1c90}-\\x{1cba}"                  \
    "\\x{1cbd}-\\x{1cbf}\\x{1d00}-\\x{1d2b}\\x{1d6b}-\\x{1d77}\\x{1d79}-\\x{1d9a}\\x{1e00}-\\x{1f15}"                \
    "\\x{1f18}-\\x{1f1d}\\x{1f20}-\\x{1f45}\\x{1f48}-\\x{1f4d}\\x{1f50}-\\x{1f57}\\x{1f59}\\x{1f5b}"                 \
    "\\x{1f5d}\\x{1f5f}-\\x{1f7d}\\x{1f80}-\\x{1fb4}\\x{1fb6}-\\x{1fbc}\\x{1fbe}\\x{1fc2}-\\x{1fc4}"                 \
    "\\x{1fc6}-\\x{1fcc}\\x{1fd0}-\\x{1fd3}\\x{1fd6}-\\x{1fdb}\\x{1fe0}-\\x{1fec}\\x{1ff2}-\\x{1ff4}"                \
    "\\x{1ff6}-\\x{1ffc}\\x{2102}\\x{2107}\\x{210a}-\\x{2113}\\x{2115}\\x{2119}-\\x{211d}\\x{2124}"                  \
    "\\x{2126}\\x{2128}\\x{212a}-\\x{212d}\\x{212f}-\\x{2134}\\x{2139}\\x{213c}-\\x{213f}"                           \
    "\\x{2145}-\\x{2149}\\x{214e}\\x{2183}\\x{2184}\\x{2c00}-\\x{2c7b}\\x{2c7e}-\\x{2ce4}"                           \
    "\\x{2ceb}-\\x{2cee}\\x{2cf2}\\x{2cf3}\\x{a640}-\\x{a66d}\\x{a680}-\\x{a69b}\\x{a722}-\\x{a76f}"                 \
    "\\x{a771}-\\x{a787}\\x{a78b}-\\x{a78e}\\x{ab70}-\\x{abbf}\\x{fb00}-\\x{fb06}\\x{fb13}-\\x{fb17}"                \
    "\\x{ff21}-\\x{ff3a}\\x{ff41}-\\x{ff5a}\\x{10400}-\\x{1044f}\\x{104b0}-\\x{104d3}"                               \
    "\\x{104d8}-\\x{104fb}\\x{10c80}-\\x{10cb2}\\x{10cc0}-\\x{10cf2}\\x{118a0}-\\x{118df}"                           \
    "\\x{1e900}-\\x{1e943}"
#define DEEPSEEK_MARKS "\\s?[!-/:-~\\x{ff01}-\\x{ff0f}\\x{ff1a}-\\x{ff5e}\\x{2018}-\\x{201f}\\x{3000}-\\x{3002}]+"
#define FALCON_MARKS   "[\\p{P}\\$\\+<=>\\^~\\|"
#define BLOOM          " ?[^(\\s|.,!?\\x{2026}\\x{3002}\\x{ff0c}\\x{3001}\\x{964}\\x{6d4}\\x{60c})]+"

static const struct pre_name names[] = {
    {"default", {FALCON_MARKS "]+", GPT2, "\\p{N}+", "[0-9][0-9][0-9]"}, 0},
    {"gpt-2", {GPT2}, 0},
    {"phi-2", {GPT2}, 0},
    {"exaone4", {GPT2}, 0},
    {"gigachat", {GPT2}, 0},
    {"a.x-4.0", {GPT2}, 0},
    {"mellum", {GPT2}, 0},
    {"modern-bert", {GPT2}, 0},
    {"jais", {GPT2}, 0},
    {"trillion", {GPT2}, 0},
    {"granite-docling", {GPT2}, 0},
    {"mpt", {GPT2}, PRE_NFC},
    {"olmo", {GPT2}, PRE_NFC},
    {"smollm", {"\\p{N}", GPT2}, 0},
    {"starcoder", {"\\p{N}", GPT2}, 0},
    {"refact", {"\\p{N}", GPT2}, 0},
    {"codeshell", {"\\p{N}", GPT2}, 0},
    {"exaone", {"\\p{N}", GPT2}, 0},
    {"minerva-7b", {"\\p{N}", GPT2}, 0},
    {"command-r", {"\\p{N}", GPT2}, PRE_NFC},
    {"falcon", {FALCON_MARKS "`]+", GPT2, "[0-9][0-9][0-9]"}, 0},
    {"llama3", {CL100K}, PRE_IGNORE_MERGES | PRE_BOS},
    {"llama-v3", {CL100K}, PRE_IGNORE_MERGES | PRE_BOS},
    {"llama-bpe", {CL100K}, PRE_IGNORE_MERGES | PRE_BOS},
    {"falcon3", {CL100K}, PRE_IGNORE_MERGES | PRE_BOS},
    {"falcon-h1", {CL100K}, PRE_IGNORE_MERGES | PRE_BOS},
    {"pixtral", {CL100K}, PRE_IGNORE_MERGES | PRE_BOS},
    {"midm-2.0", {CL100K}, PRE_IGNORE_MERGES | PRE_BOS},
    {"lfm2", {CL100K}, PRE_IGNORE_MERGES | PRE_BOS},
    {"dbrx", {CL100K}, 0},
    {"smaug-bpe", {CL100K}, 0},
    {"glm4", {CL100K}, 0},
    {"chatglm-bpe", {CL100K}, 0},
    {"qwen2", {QWEN2}, PRE_NFC},
    {"deepseek-r1-qwen", {QWEN2}, PRE_NFC},
    {"qwen35", {QWEN35}, PRE_NFC},
    {"stablelm2", {QWEN2}, 0},
    {"megrez", {QWEN2}, 0},
    {"hunyuan", {QWEN2}, 0},
    {"solar-open", {QWEN2}, 0},
    {"grok-2", {QWEN2}, 0},
    {"seed-coder", {SUFFIXES "|" WORDS "|\\p{N}| ?[^\\s\\p{L}\\p{N}\\r\\n]+|" SPACES}, 0},
    {"gpt-4o", {O200K}, 0},
    {"llama4", {O200K}, 0},
    {"minimax-m2", {O200K}, 0},
    {"tekken", {TEKKEN}, PRE_IGNORE_MERGES | PRE_BOS},
    {"kimi-k2", {KIMI}, 0},
    {"deepseek-v3", {"\\p{N}{1,3}", CJK_KANA, DEEPSEEK3}, 0},
    {"hunyuan-dense", {"\\p{N}{1,3}", CJK_KANA, DEEPSEEK3}, 0},
    {"deepseek-coder", {"[\\r\\n]", "\\s?\\p{L}+", "\\s?\\p{P}+", CJK_HANGUL, "\\p{N}"}, 0},
    {"deepseek-llm", {"[\\r\\n]", "\\s?[" CASED_LETTERS "]+", DEEPSEEK_MARKS, "\\s+$", CJK_HANGUL, "\\p{N}+"}, 0},
    {"bloom", {BLOOM}, 0},
    {"poro-chat", {BLOOM}, 0},
    {"gpt3-finnish", {BLOOM}, 0},
    {"viking", {BLOOM, "\\p{N}"}, 0},
};

const struct pre_name *sy_pre_name_at(size_t i) { return i < SY_COUNT(names) ? &names[i] : NULL; }

const struct pre_name *sy_pre_name_find(const char *name)
{
    for (size_t i = 0; i < SY_COUNT(names); i++)
        if (!strcmp(names[i].name, name)) return &names[i];
    return NULL;
}
