#include "model/arch.h"
#include "base/str.h"
#include <math.h>
#include <string.h>

extern const mx_family mx_family_llama, mx_family_qwen2, mx_family_qwen3, mx_family_qwen3_moe,
    mx_family_mixtral, mx_family_gemma3, mx_family_qwen3_5;

const mx_family *const mx_families[] = {
    &mx_family_llama,   &mx_family_qwen2,  &mx_family_qwen3,   &mx_family_qwen3_moe,
    &mx_family_mixtral, &mx_family_gemma3, &mx_family_qwen3_5,
};
const int mx_n_family = countof(mx_families);

const mx_family *mx_family_find(const char *model_type) {
    for (int i = 0; i < mx_n_family; i++) {
        for (int k = 0; mx_families[i]->model_types[k]; k++) {
            if (!strcmp(mx_families[i]->model_types[k], model_type)) return mx_families[i];
        }
    }
    return NULL;
}

static mx_status unknown_family(mx_config *c, mx_err *err) {
    char names[200] = "";
    for (int i = 0; i < mx_n_family; i++) {
        for (int k = 0; mx_families[i]->model_types[k]; k++) {
            if (*names) strcat(names, ", ");
            strncat(names, mx_families[i]->model_types[k], sizeof names - strlen(names) - 3);
        }
    }
    return mx_fail(err, MX_UNSUPPORTED, "config.json: model_type \"%s\" is not supported (supported: %s)",
                   mx_config_model_type(c), names);
}

/* What no family may break: the shapes that ops rely on. */
static mx_status check(const mx_arch *a, mx_err *err) {
    if (a->n_head % a->n_kv) {
        return mx_fail(err, MX_EINVAL,
                       "config.json: %d attention heads are not a multiple of %d key-value heads", a->n_head,
                       a->n_kv);
    }
    if (a->delta_k_heads && a->delta_v_heads % a->delta_k_heads) {
        return mx_fail(err, MX_EINVAL, "config.json: %d value heads are not a multiple of %d key heads",
                       a->delta_v_heads, a->delta_k_heads);
    }
    if (a->n_expert_used > a->n_expert) {
        return mx_fail(err, MX_EINVAL, "config.json: %d experts per token, but only %d experts",
                       a->n_expert_used, a->n_expert);
    }
    if (!(a->eps > 0 && a->eps < 1) || !(a->attn_scale > 0) || !isfinite(a->attn_scale) ||
        a->attn_softcap < 0 || a->final_softcap < 0) {
        return mx_fail(err, MX_EINVAL,
                       "config.json: the norm epsilon, attention scale or a soft cap is out of range");
    }
    for (int i = 0; i < MX_ROPES; i++) {
        int n_rot = (int)(a->hd * a->rope[i].partial);
        if (n_rot % 2) {
            return mx_fail(err, MX_EINVAL,
                           "config.json: %d of %d values of a head would rotate; the number must be even",
                           n_rot, a->hd);
        }
    }
    return MX_OK;
}

mx_status mx_arch_describe(mx_arch *a, const mx_family **family, mx_config *c, mx_err *err) {
    *family = mx_family_find(mx_config_model_type(c));
    if (!*family) return unknown_family(c, err);
    memset(a, 0, sizeof *a);
    (*family)->describe(c, a);
    MX_TRY(mx_config_finish(c, err));
    return check(a, err);
}
